"""When Horovod may be switched, who begins and ends MPI, and what a copy of a library holds; Horovod is played."""

import atexit
import ctypes
import os
import resource
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scalescope.engines import horovod_switch_live as switching
from scalescope.engines.horovod_switch_live import MOST_SWITCHES, Switcher, loadable, why_not_here


class Mpi:
    """A library of MPI that notes what is asked of it; `begun` and `over` are its answers."""

    def __init__(self, begun: int = 0, over: int = 0) -> None:
        self.begun, self.over = begun, over
        self.asked: list[str] = []

    def MPI_Initialized(self, into: Any) -> None:  # noqa: N802
        into._obj.value = self.begun

    def MPI_Finalized(self, into: Any) -> None:  # noqa: N802
        into._obj.value = self.over

    def MPI_Init_thread(self, _: None, __: None, level: int, got: Any) -> None:  # noqa: N802
        assert isinstance(got._obj, ctypes.c_int)
        self.asked.append(f"begin with level {level}")

    def MPI_Finalize(self) -> None:  # noqa: N802
        self.asked.append("end")


class Played:
    """Horovod as far as a switcher asks it."""

    def __init__(self) -> None:
        self.sets = {0: [0, 1]}
        self.through_mpi = False
        self.has_mpi = True
        self.library = Mpi()
        basics = SimpleNamespace(
            _get_process_set_ids_and_ranks=lambda: self.sets,
            mpi_built=lambda: self.has_mpi,
            MPI_LIB_CTYPES=self.library,
        )
        self.ops = SimpleNamespace(_basics=basics, _handle_map={}, init=lambda *_: None)

    def mpi_enabled(self) -> bool:
        return self.through_mpi

    def is_initialized(self) -> bool:
        return True


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    for name in (*switching._FORBIDDING, "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "horovod.torch.mpi_ops", made.ops)
    monkeypatch.setattr(atexit, "register", lambda what: made.library.asked.append(what.__name__))
    monkeypatch.setattr(switching, "_most_files", lambda: 10_000)
    monkeypatch.setattr(switching, "_open_files", lambda: 50)
    return made


def files(monkeypatch: pytest.MonkeyPatch, most: int, *open_: int) -> None:
    """So many may be open; so many are, each time somebody looks, and the last number from then on."""
    left = list(open_)
    monkeypatch.setattr(switching, "_most_files", lambda: most)
    monkeypatch.setattr(switching, "_open_files", lambda: left.pop(0) if len(left) > 1 else left[0])


def test_over_mpi_only_the_number_of_copies_limits_switches(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    files(monkeypatch, 100, 95)
    played.through_mpi = True
    switcher = Switcher(played)
    assert (switcher.controller, switcher.switches_left) == ("mpi", MOST_SWITCHES) == ("mpi", 60)
    switcher.switches = 25
    assert switcher.switches_left == 35


def test_over_gloo_every_switch_needs_ten_files(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    switcher = Switcher(played)
    assert (switcher.controller, switcher.switches_left) == ("gloo", 60)
    for open_, left in ((440, 56), (449, 55), (400, 60), (995, 0)):
        files(monkeypatch, 1000, open_)
        assert switcher.switches_left == left


def test_a_switch_that_left_more_files_open_counts_for_those_to_come(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    switcher = Switcher(played)
    switcher._spares = [("module", "library")] * 3
    files(monkeypatch, 1000, 100, 120, 120)
    switcher.start({}, {}, None)
    assert (switcher.switches, switcher.switches_left) == (1, (1000 - 120) // 20)
    files(monkeypatch, 1000, 120, 123, 123)
    switcher.start({}, {}, None)
    assert (switcher.switches, switcher.switches_left) == (2, (1000 - 123) // 20)


def test_the_last_switch_is_kept_for_the_way_back(played: Played) -> None:
    switcher = Switcher(played)
    switcher.switches = 58
    assert (switcher.switches_left, switcher.refusal()) == (2, "")
    switcher.switches = 59
    assert switcher.refusal() == "59 switches are made, and no more are possible"


@pytest.mark.parametrize(
    ("sets", "arguments", "options", "allowed"),
    [
        (1, (), {}, True),
        (1, (None, "dynamic"), {}, True),
        (2, (), {}, False),
        (2, (), {"process_sets": ["one"]}, True),
        (2, (None, ["one"]), {}, True),
        (3, (), {"process_sets": ["one"]}, False),
        (3, (), {"process_sets": ["one", "two"]}, True),
        (2, (), {"process_sets": "a"}, False),
    ],
)
def test_process_sets_that_were_added_later_forbid_a_switch(
    played: Played, sets: int, arguments: tuple[Any, ...], options: dict[str, Any], allowed: bool
) -> None:
    played.sets = {number: [0] for number in range(sets)}
    switcher = Switcher(played)
    switcher.before_start(arguments, options)
    assert switcher.refusal() == ("" if allowed else "process sets were added while it trains")


def test_mpi_is_begun_once_for_all_threads_and_ended_once(played: Played) -> None:
    switcher = Switcher(played)
    switcher.before_start((), {})
    switcher.before_start((), {})
    assert played.library.asked == ["begin with level 3", "after_stop"]
    switcher.after_stop()
    switcher.after_stop()
    assert played.library.asked[2:] == ["end"]


def test_mpi_that_somebody_else_began_or_ended_is_left_alone(played: Played) -> None:
    played.library.begun = 1
    switcher = Switcher(played)
    switcher.before_start((), {})
    switcher.after_stop()
    assert played.library.asked == []
    played.library.begun, played.library.over = 0, 1
    switcher.before_start((), {})
    switcher.after_stop()
    assert "end" not in played.library.asked


@pytest.mark.parametrize(
    ("controller", "operations", "built", "begun"),
    [
        (None, None, True, True),
        ("gloo", "gloo", True, False),
        ("gloo", None, True, True),
        ("gloo", "MPI", True, True),
        ("MPI", "gloo", True, True),
        (None, None, False, False),
    ],
)
def test_mpi_is_begun_where_horovod_would_use_it(
    played: Played,
    monkeypatch: pytest.MonkeyPatch,
    controller: str | None,
    operations: str | None,
    built: bool,
    begun: bool,
) -> None:
    played.has_mpi = built
    for name, text in (("HOROVOD_CONTROLLER", controller), ("HOROVOD_CPU_OPERATIONS", operations)):
        if text:
            monkeypatch.setenv(name, text)
    Switcher(played).before_start((), {})
    assert bool(played.library.asked) == begun


def test_a_copy_cannot_be_used_elsewhere_than_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_not_here() == "its library can be copied on Linux only"


def test_variables_are_as_before_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALESCOPE_KNOWN", "old")
    monkeypatch.delenv("SCALESCOPE_NEW", raising=False)

    def fail() -> None:
        with switching._environment({"SCALESCOPE_KNOWN": "1", "SCALESCOPE_NEW": "2"}):
            assert (os.environ["SCALESCOPE_KNOWN"], os.environ["SCALESCOPE_NEW"]) == ("1", "2")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert os.environ["SCALESCOPE_KNOWN"] == "old"
    assert "SCALESCOPE_NEW" not in os.environ


def test_a_hundred_files_are_left_to_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert switching._most_files() == 924
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert switching._most_files() == 2**30


def test_open_files_are_counted(tmp_path: Path) -> None:
    before = switching._open_files()
    with open(tmp_path / "one", "w"), open(tmp_path / "two", "w"):
        assert switching._open_files() == before + 2


def elf(*parts: tuple[int, int, int], size: int) -> bytes:
    """A library with a table of parts (kind, offset, bytes in the file) at 128, and 7s elsewhere up to its size."""
    head = b"\x7fELF\x02\x01".ljust(32, b"\1") + struct.pack("<QQ", 128, 900) + b"\2" * 6
    head += struct.pack("<HHHHH", 56, len(parts), 64, 20, 19)
    table = b"".join(struct.pack("<IIQQQQQQ", kind, 5, offset, 0, 0, length, 0, 0) for kind, offset, length in parts)
    return (head.ljust(128, b"\7") + table).ljust(size, b"\7")


def test_a_copy_ends_with_the_last_part_that_is_loaded(tmp_path: Path) -> None:
    whole = elf((1, 0, 300), (4, 700, 200), (1, 500, 100), (1, 400, 50), size=1000)
    (tmp_path / "library.so").write_bytes(whole)
    image = loadable(str(tmp_path / "library.so"))
    assert len(image) == 600
    assert image[40:48] == bytes(8), "no place of a table of sections"
    assert image[60:64] == bytes(4), "and no entries in it"
    assert image[:40] + image[48:60] + image[64:] == whole[:40] + whole[48:60] + whole[64:600]


@pytest.mark.parametrize("head", [b"\x7fELF\x01\x01", b"\x7fELF\x02\x02", b"MZ"])
def test_a_library_of_another_kind_is_copied_as_it_is(tmp_path: Path, head: bytes) -> None:
    whole = head + elf((1, 0, 100), size=400)[len(head) :]
    (tmp_path / "library.so").write_bytes(whole)
    assert loadable(str(tmp_path / "library.so")) == whole
