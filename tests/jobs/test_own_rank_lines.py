"""Ranks that a script starts itself: seen in its words, in its source, and among processes that /proc shows."""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from scalescope.jobs import own_ranks
from scalescope.jobs.command import missing_script
from scalescope.jobs.own_ranks import (
    OwnRanksWatch,
    StartsItsOwnRanks,
    _parent,
    is_launch_line,
    places_ranks_elsewhere,
    starts_ranks_itself,
)
from scalescope.jobs.rank_log import RankLog


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("env A=1 torchrun x.py", True),
        ("env torchrun", True),
        ("A=1 torchrun", False),
        ("env A=1", False),
        ("", False),
        ("python -u x.py -m torch.distributed.run", False),
        ("python -m", False),
        ("other -m torch.distributed.run", False),
        ("lightning run x", True),
        ("lightning", False),
    ],
)
def test_words_of_launchers_are_known_behind_env(line: str, is_one: bool) -> None:
    assert is_launch_line(tuple(line.split())) is is_one


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("python absent.py", "absent.py"),
        ("env A=1 /usr/bin/python3.11 -u -Wignore -OO absent here.py", "absent"),
        ("python here.py absent.py", ""),
        ("python . absent.py", ""),
        ("python {run_dir}/absent.py", ""),
        ("python -m absent.py", ""),
        ("python -c absent.py", ""),
        ("python -W ignore absent.py", ""),
        ("python -", ""),
        ("python", ""),
        ("other absent.py", ""),
        ("python /" + 300 * "x" + ".py", "/" + 300 * "x" + ".py"),
    ],
)
def test_a_script_that_is_not_there_is_missed_where_words_say_which_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, missing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    assert missing_script(tuple(line.split())) == missing


@pytest.mark.parametrize(
    ("line", "launcher", "elsewhere"),
    [
        ("", "own", False),
        ("./run.sh", "", False),
        ("./run.sh", "own", True),
        ("mpirun x", "", True),
        ("torchrun --nnodes=1 x.py", "", False),
        ("torchrun --nnodes 1:1 x.py", "", False),
        ("torchrun --nnodes=10 x.py", "", True),
        ("env A=1 torchrun --nnodes=2 x.py", "", True),
        ("python3 x.py", "own", False),
    ],
)
def test_a_line_of_the_user_may_place_ranks_elsewhere(line: str, launcher: str, elsewhere: bool) -> None:
    assert places_ranks_elsewhere(tuple(line.split()), launcher) is elsewhere


SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(f)\n"


def test_a_script_that_is_executable_itself_is_read_too(tmp_path: Path) -> None:
    script, text = tmp_path / "x.py", tmp_path / "x.txt"
    for path in (script, text):
        path.write_text(SPAWNS)
    assert starts_ranks_itself((str(script), "--epochs", "2"))
    assert starts_ranks_itself(("env", "A=1", sys.executable, "-u", str(script)))
    assert not places_ranks_elsewhere((str(script),), "own")
    for command in ((str(text),), (sys.executable, str(text)), (str(tmp_path / "none.py"),), (sys.executable, "-u")):
        assert not starts_ranks_itself(command)
    assert not starts_ranks_itself((sys.executable, "other.py", str(script)))


def test_a_source_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text(SPAWNS + "#" * (10_000_000 - len(SPAWNS) - 1))
    assert starts_ranks_itself((str(script),))
    with open(script, "a") as file:
        file.write("#")
    assert not starts_ranks_itself((str(script),))


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ("import torch.multiprocessing as mp\nenv = {'RANK': '0'}\nmp.spawn(f)", True),
        ("import torch.multiprocessing as mp\nprint('LOCAL_RANK')\nmp.spawn(f)", False),
        ("import torch.multiprocessing as mp\nmake().spawn(f)", False),
        ("from torch import multiprocessing as tmp\ntmp.spawn(f)", True),
        ("import torch.multiprocessing as mp\nmp.spawn.spawn(f)", True),
        ("spawn = 1\nf[0].spawn(g)\nx.y(z)", False),
        ("from . import spawn\nspawn()", False),
    ],
)
def test_imported_names_are_resolved_to_the_function_they_stand_for(tmp_path: Path, source: str, own: bool) -> None:
    script = tmp_path / "x.py"
    script.write_text(source)
    assert starts_ranks_itself((str(script),)) is own


class Shown(NamedTuple):
    """What /proc shows of a process."""

    parent: int
    launch: str = "mark"
    rank: bool = True
    torch: bool = True


class Proc(dict[int, Shown]):
    """Stands in for /proc."""

    def read(self, pid: int, name: str) -> bytes:
        if pid not in self:
            return b""
        shown = self[pid]
        variables = [b"A=1", f"SCALESCOPE_LAUNCH={shown.launch}".encode(), *([b"RANK=0"] if shown.rank else [])]
        return {
            "environ": b"\0".join(variables),
            "maps": b"/x/libtorch_cpu.so" if shown.torch else b"/x/libc.so",
            "stat": f"{pid} (a ) b) S {shown.parent} 1 1".encode(),
        }[name]


class Seconds:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Proc:
    made = Proc()
    monkeypatch.setattr(own_ranks, "_read", made.read)
    monkeypatch.delenv("RANK", raising=False)
    return made


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(own_ranks, "time", made)
    return made


def log(pid: int, world: int = 0, *, in_init: bool = False, host: str = "") -> RankLog:
    made = RankLog(Path("none"))
    made.pid, made.world_size, made.in_init, made.host = pid, world, in_init, host or os.uname().nodename
    return made


LAUNCHED, SPAWNED = 1001, (1002, 1003)


def spawning(proc: Proc, **of_the_first: object) -> list[RankLog]:
    """A rank that was launched, and two that it has started."""
    proc[LAUNCHED] = Shown(parent=os.getpid())._replace(**of_the_first)  # type: ignore[arg-type]
    proc |= dict.fromkeys(SPAWNED, Shown(parent=LAUNCHED))
    return [log(pid) for pid in (LAUNCHED, *SPAWNED)]


def test_more_ranks_than_were_launched_below_a_rank_are_its_own(proc: Proc) -> None:
    logs = spawning(proc)
    with pytest.raises(StartsItsOwnRanks, match="the script starts its ranks itself"):
        OwnRanksWatch("mark", 2).check(logs)
    OwnRanksWatch("mark", 3).check(logs)
    OwnRanksWatch("another", 2).check(logs)


@pytest.mark.parametrize("above", [{"torch": False}, {"rank": False}, {"launch": "other"}])
def test_a_wrapper_around_the_script_is_no_rank(proc: Proc, above: dict[str, object]) -> None:
    OwnRanksWatch("mark", 2).check(spawning(proc, **above))


def test_a_rank_further_above_is_found_up_to_this_process(proc: Proc) -> None:
    logs = spawning(proc)
    proc[5000] = Shown(parent=LAUNCHED, rank=False)
    proc |= dict.fromkeys(SPAWNED, Shown(parent=5000))
    with pytest.raises(StartsItsOwnRanks):
        OwnRanksWatch("mark", 2).check(logs)
    proc[LAUNCHED] = Shown(parent=os.getpid(), torch=False)
    proc[os.getpid()] = Shown(parent=6000, rank=False)
    proc[6000] = Shown(parent=1)
    OwnRanksWatch("mark", 2).check(logs)


def test_own_ranks_are_not_looked_for_inside_a_rank(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    OwnRanksWatch("mark", 2).check(spawning(proc))


def test_ranks_on_other_hosts_are_not_looked_at(proc: Proc) -> None:
    spawning(proc)
    OwnRanksWatch("mark", 2).check([log(pid, host="far") for pid in (LAUNCHED, *SPAWNED)])


@pytest.mark.parametrize(("world", "own"), [(4, True), (2, False), (0, False)])
def test_a_group_of_another_size_below_a_rank_is_its_own(proc: Proc, world: int, own: bool) -> None:
    spawning(proc)
    logs = [log(LAUNCHED, in_init=True), log(SPAWNED[0], world)]
    if own:
        with pytest.raises(StartsItsOwnRanks, match="the script starts"):
            OwnRanksWatch("mark", 2).check(logs)
    else:
        OwnRanksWatch("mark", 2).check(logs)


def test_as_many_ranks_as_were_launched_are_not_strange_once_they_train(proc: Proc) -> None:
    spawning(proc)
    OwnRanksWatch("mark", 2).check([log(LAUNCHED), log(SPAWNED[0], 4)])


def test_a_process_alone_that_waits_for_others_is_given_up(proc: Proc, seconds: Seconds) -> None:
    proc[LAUNCHED] = Shown(parent=os.getpid())
    waiting, watch, two = log(LAUNCHED, in_init=True), OwnRanksWatch("mark", 1), OwnRanksWatch("mark", 2)
    for now in (100.0, 110.0, 120.0):
        seconds.now = now
        watch.check([waiting])
        two.check([waiting])
    seconds.now = 120.5
    two.check([waiting])
    with pytest.raises(StartsItsOwnRanks, match="the script waited for ranks that nobody started"):
        watch.check([waiting])


def test_a_wait_is_counted_anew_and_not_at_all_in_training(proc: Proc, seconds: Seconds) -> None:
    proc |= {LAUNCHED: Shown(parent=os.getpid()), 1002: Shown(parent=os.getpid())}
    waiting, other, watch = log(LAUNCHED, in_init=True), log(1002, in_init=True), OwnRanksWatch("mark", 1)
    other.engine = "ddp"
    watch.check([waiting, other])
    seconds.now, waiting.in_init = 115.0, False
    watch.check([waiting, other])
    seconds.now, waiting.in_init = 116.0, True
    watch.check([waiting, other])
    seconds.now = 136.0
    watch.check([waiting, other])


def test_a_rank_below_another_that_waits_is_stuck(proc: Proc, seconds: Seconds) -> None:
    spawning(proc)
    logs, watch = [log(LAUNCHED), log(SPAWNED[0], in_init=True)], OwnRanksWatch("mark", 2)
    watch.check(logs)
    seconds.now = 121.0
    with pytest.raises(StartsItsOwnRanks, match="the script starts its ranks itself"):
        watch.check(logs)


def test_the_parent_of_a_process_is_read_behind_its_name(proc: Proc) -> None:
    proc[7] = Shown(parent=42)
    assert (_parent(7), _parent(8)) == (42, 0)


def test_this_process_is_read_from_the_real_proc() -> None:
    assert _parent(os.getpid()) == os.getppid()
    assert own_ranks._read(2**22 + 1, "stat") == b""
