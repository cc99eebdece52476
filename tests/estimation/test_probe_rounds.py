"""How many rounds a probe makes and what its ranks write, with played collectives and once with a real rank."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.estimation import link_probe, probe_ranks
from scalescope.estimation.probe import read_lines
from scalescope.estimation.probe_ranks import (
    Around,
    Idle,
    Line,
    Overlapped,
    ProbeTask,
    Round,
    Timed,
    around,
    disagreement,
    file_of,
    helper_of,
    main,
    make_rounds,
    one_round,
)
from scalescope.jobs.load import LoadMeter
from scalescope.jobs.rank_program import USAGE_MARK
from scalescope.records.run import QUIET
from scalescope.records.store import LineWriter

ALONE = {"layer_s": 1.0, "layer_overlapped_s": 1.5, "message_s": 2.0, "message_overlapped_s": 2.5}
TASK = ProbeTask(engine="ddp", knobs={"backend": "gloo"}, device="cpu", rounds=5, seconds=10.0, sizes=(4,))


class Played:
    """A probe, its ranks and its helper: round by round what others used and what a collective took."""

    def __init__(self, *rounds: tuple[float, float], round_s: float = 1.0) -> None:
        self.now, self.round_s = 100.0, round_s
        self.rounds = list(rounds)
        self.made = 0
        self.agreed: list[int] = []
        self.pairs: list[int] = []

    def collectives(self) -> Iterator[dict[str, Any]]:
        self.now += self.round_s
        self.made += 1
        _, pace_s = self.rounds[min(self.made, len(self.rounds)) - 1]
        for size in (4, 8):
            seconds = [pace_s, 9 * pace_s, pace_s]
            yield {"operation": "allreduce", "bytes": size, "seconds": seconds, "cpu_seconds": [0.0] * 3}

    def overlap(self) -> dict[str, float]:
        return ALONE

    def foreign_cores(self, meter: LoadMeter) -> float:
        assert isinstance(meter, LoadMeter)
        return self.rounds[min(self.made, len(self.rounds)) - 1][0]

    def copy_s_per_byte(self) -> float:
        return 3e-10

    def agree(self, value: int) -> int:
        self.agreed.append(value)
        return value

    def pair(self, number: int) -> tuple[float, float]:
        self.pairs.append(number)
        return 1.5, 1.0


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, played: Any, *, helper: bool = False, **task: Any) -> int:
    """Rounds that were made."""
    monkeypatch.setattr(probe_ranks, "time", SimpleNamespace(monotonic=lambda: played.now))
    asked = msgspec.structs.replace(TASK, **task)
    make_rounds(asked, played, played, LineWriter(folder / file_of(0)), played if helper else None, played)
    return int(played.made)


def written(folder: Path) -> list[Line]:
    (lines,) = read_lines(folder, 1)
    return lines


def test_a_round_writes_collectives_overlap_and_its_end(tmp_path: Path) -> None:
    played: Any = Played((0.125, 0.5))
    assert one_round(played, LineWriter(tmp_path / file_of(0)), played) == (0.125, 1.0)  # the medians' sum
    seconds = [0.5, 4.5, 0.5]
    assert written(tmp_path) == [
        *(Timed(operation="allreduce", bytes=size, seconds=seconds, cpu_seconds=[0.0] * 3) for size in (4, 8)),
        Overlapped(**ALONE),
        Round(foreign_cores=0.125),
    ]


@pytest.mark.parametrize(("rounds", "expected"), [(5, 5), (4, 4), (3, 3), (1, 1)])
def test_undisturbed_rounds_end_when_there_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, expected: int
) -> None:
    played = Played((0.0, 1.0))
    assert made(tmp_path, monkeypatch, played, rounds=rounds) == expected
    assert played.agreed == [0] * (expected - 1) + [1]
    assert sum(isinstance(line, Round) for line in written(tmp_path)) == expected
    assert played.pairs == [], "its threads do not poll"


def test_time_ends_a_probe_when_three_rounds_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounds of 3 s in 10 s: the fourth would end at 12 s, more than half of it too late.
    assert made(tmp_path, monkeypatch, Played((0.0, 1.0), round_s=3.0), rounds=9) == 3
    # A round of 2.5 s ends at 10 s, and half a round more would be late.
    assert made(tmp_path, monkeypatch, Played((0.0, 1.0), round_s=2.5), rounds=9) == 4
    # After two rounds of 6 s it is late already, but two are too few.
    assert made(tmp_path, monkeypatch, Played((0.0, 1.0), round_s=6.0), rounds=9) == 3
    # A round that would end no more than half of it too late is made.
    assert made(tmp_path, monkeypatch, Played((0.0, 1.0), round_s=2.75), rounds=9) == 4
    assert made(tmp_path, monkeypatch, Played((0.0, 1.0), round_s=4.0), rounds=9, seconds=14.0) == 4


def test_rounds_that_disagree_are_followed_by_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild = [(0.0, pace_s) for pace_s in (1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0)]
    # Twice its length late, that is after more than 30 s, it gives up.
    assert made(tmp_path, monkeypatch, Played(*wild, round_s=4.0), rounds=99) == 8
    calm = [(0.0, pace_s) for pace_s in (1.0, 1.1, 1.0)]
    assert made(tmp_path, monkeypatch, Played(*calm, round_s=4.0), rounds=99) == 3


def test_disturbed_rounds_do_not_count_until_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(tmp_path, monkeypatch, Played((0.9, 1.0)), rounds=2) == 31
    assert made(tmp_path, monkeypatch, Played((0.9, 1.0), (0.0, 1.0), (0.9, 1.0), (0.0, 1.0)), rounds=2) == 4


def test_a_round_is_quiet_up_to_the_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(tmp_path, monkeypatch, Played((QUIET, 1.0)), rounds=2) == 2


def test_where_threads_poll_every_round_has_two_pairs_of_its_helper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played((0.0, 1.0))
    assert made(tmp_path, monkeypatch, played, helper=True, rounds=2) == 2
    assert played.pairs == [0, 1, 0, 1]
    assert played.agreed == [0, 0, 0, 0, 0, 1]
    kinds = [type(line).__name__ for line in written(tmp_path)]
    assert kinds == ["Timed", "Timed", "Overlapped", "Round", "Idle", "Idle"] * 2
    assert written(tmp_path)[-1] == Idle(layer_s=1.5, layer_without_s=1.0)


def test_copies_are_timed_while_all_ranks_do_it(tmp_path: Path) -> None:
    played: Any = Played()
    around(played, played, LineWriter(tmp_path / file_of(0)))
    assert written(tmp_path) == [Around(copy_s_per_byte=3e-10)]
    assert played.agreed == [0, 0]


def test_rounds_disagree_by_their_relative_deviation() -> None:
    assert disagreement([]) == disagreement([2.0]) == 0.0
    assert disagreement([3.0, 3.0]) == 0.0
    for paces in ([1.0, 2.0], [50.0, 100.0]):
        assert disagreement(paces) == pytest.approx(0.6931 / 2**0.5, rel=1e-3)


def test_only_engines_whose_threads_poll_need_a_helper_and_not_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    helper: Any = object()
    monkeypatch.setattr(probe_ranks, "IdleHelper", lambda: helper)
    assert helper_of("horovod", "cpu") is helper
    assert helper_of("ddp", "cpu") is None
    assert helper_of("horovod", "cuda") is None


def ranks(monkeypatch: pytest.MonkeyPatch, folder: Path, **task: Any) -> Callable[[], int]:
    """A rank that was launched alone."""
    for name, text in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(link_probe, "_LAYERS_S", 0.01)
    monkeypatch.setattr(link_probe, "_MESSAGE_BYTES", 4096)
    monkeypatch.setattr(link_probe, "_WIDTH", 64)
    path = folder / "task.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(TASK, **task)))
    return lambda: main([str(path)])


def test_a_real_rank_writes_rounds_and_what_copies_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks(monkeypatch, tmp_path, rounds=1, seconds=0.01)() == 0
    lines = written(tmp_path)
    assert [type(line).__name__ for line in lines[:4]] == ["Timed", "Timed", "Overlapped", "Round"]
    assert isinstance(lines[-1], Around)
    assert lines[-1].copy_s_per_byte > 0
    timed = lines[0]
    assert isinstance(timed, Timed)
    assert (timed.operation, timed.bytes) == ("allreduce", 4)
    assert 4 <= len(timed.seconds) == len(timed.cpu_seconds) <= 30
    assert min(timed.seconds) > 0


def test_a_rank_without_its_device_fails_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(name: str) -> None:
        raise UsageError(f"no {name} here")

    monkeypatch.setattr(probe_ranks, "device_named", refuse)
    assert ranks(monkeypatch, tmp_path, device="cuda")() == UsageError.exit_code
    assert capsys.readouterr().err == f"{USAGE_MARK} no cuda here\n"
