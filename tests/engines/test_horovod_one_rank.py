"""Horovod's knobs change in one real rank."""

import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import needs
from scalescope.engines import horovod_live
from scalescope.engines import horovod_switch_live as switching
from scalescope.engines.horovod_switch_live import Switcher, rendezvous_server, why_not_here

NUMBERS = itertools.count(1000, 1000)
VARIABLES = (
    "HOROVOD_FUSION_THRESHOLD",
    "HOROVOD_CYCLE_TIME",
    "HOROVOD_CACHE_CAPACITY",
    "HOROVOD_HIERARCHICAL_ALLREDUCE",
    "HOROVOD_TORUS_ALLREDUCE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    *switching._FORBIDDING,
)


@pytest.fixture(autouse=True)
def through_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that nobody launched, and no knob from outside."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
        monkeypatch.setenv(name, "gloo")


@pytest.fixture
def running() -> Iterator[Switcher]:
    """A switcher of Horovod, which runs with one rank in a copy of its own; afterwards the first library is back."""
    needs.horovod()
    import horovod.torch as hvd

    ops = hvd.mpi_ops
    first = ops.mpi_lib, ops._basics.MPI_LIB_CTYPES
    switcher = Switcher(hvd)
    switcher._copies = next(NUMBERS)  # a process usually has one switcher, and names of copies must not come twice
    switcher.load()
    switcher._use_spare()
    switcher.before_start((), {})
    hvd.init()
    yield switcher
    hvd.shutdown()
    ops.mpi_lib, ops._basics.MPI_LIB_CTYPES = first


def summed(name: str) -> list[float]:
    import horovod.torch as hvd

    return list(hvd.allreduce(torch.tensor([1.0, 2.0]), name=name).tolist())


def test_horovod_goes_on_in_a_fresh_copy_of_its_library(running: Switcher) -> None:
    import horovod.torch as hvd

    before = hvd.mpi_ops.mpi_lib
    running.load()
    running.stop()
    assert not hvd.is_initialized()
    running.start({"cycle_time_ms": 2.5}, {}, None)
    assert hvd.mpi_ops.mpi_lib is not before
    assert hvd.mpi_ops.mpi_lib.__file__ == before.__file__
    assert (hvd.is_initialized(), hvd.rank(), hvd.size()) == (True, 0, 1)
    assert summed("fresh") == [1.0, 2.0]
    assert (running.switches, running.controller) == (1, "gloo")


def test_two_copies_are_kept_ready_and_one_is_used_for_each_switch(running: Switcher) -> None:
    running.load()
    running.load()
    assert len(running._spares) == 2
    first, second = running._spares
    running.stop()
    running.start({}, {}, None)
    assert running._spares == [first]
    assert running._ops.mpi_lib is second[0]
    running.load()
    assert running._spares[0] is first
    assert len({module.__name__ for module, _ in running._spares} | {second[0].__name__}) == 3


def test_a_copy_that_reads_variables_as_it_is_loaded_replaces_the_one_used_next(running: Switcher) -> None:
    running.load()
    spare, used_next = running._spares
    running.load({"SCALESCOPE_SEEN": "1"})
    assert running._spares[0] is spare
    assert running._spares[1] is not used_next
    assert len(running._spares) == 2
    assert "SCALESCOPE_SEEN" not in os.environ


def test_no_copy_lies_around(running: Switcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running.load()
    assert list(tmp_path.iterdir()) == []


def test_the_values_are_in_the_environment_while_horovod_starts_and_not_afterwards(
    running: Switcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}
    init = running._ops.init
    monkeypatch.setattr(running._ops, "init", lambda *given: seen.update(os.environ) or init(*given))
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "7")
    running.load()
    running.stop()
    values = {"cycle_time_ms": 2.5, "fusion_threshold_mb": 0.5, "cache_capacity": 0, "torus_allreduce": False}
    running.start(values, {"HOROVOD_LOG_LEVEL": "error"}, ("10.0.0.1", 4000))
    told = {name: seen.get(name) for name in (*VARIABLES[:7], "HOROVOD_LOG_LEVEL")}
    assert told == {
        "HOROVOD_FUSION_THRESHOLD": "524288",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "0",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": None,
        "HOROVOD_TORUS_ALLREDUCE": "0",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000",
        "HOROVOD_LOG_LEVEL": "error",
    }
    assert os.environ["HOROVOD_CYCLE_TIME"] == "7"
    assert "HOROVOD_FUSION_THRESHOLD" not in os.environ


def test_horovod_starts_again_as_the_script_started_it(running: Switcher, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(running._ops, "init", lambda *given, **named: started.append((given, named)))
    running.before_start(([0],), {"process_sets": "dynamic"})
    running.load()
    running.start({}, {}, None)
    assert started == [(([0],), {"process_sets": "dynamic"})]


def test_a_script_that_starts_horovod_again_after_a_switch_gets_a_library_that_was_never_started(
    running: Switcher,
) -> None:
    first = running._ops.mpi_lib
    running.before_start((), {})
    assert running._ops.mpi_lib is first, "before any switch Horovod does what it does without us"
    running.load()
    running.stop()
    running.start({}, {}, None)
    used = running._ops.mpi_lib
    running.stop()
    running.before_start((), {})
    assert running._ops.mpi_lib not in (first, used)
    running._ops.init()
    assert summed("again") == [1.0, 2.0]
    running.stop()
    latest = running._ops.mpi_lib
    running.before_start((), {})
    assert running._ops.mpi_lib is not latest, "it was started in between"


def test_an_operation_is_open_until_the_script_has_waited_for_it(running: Switcher) -> None:
    import horovod.torch as hvd

    assert not running.has_open_operations()
    handle = hvd.allreduce_async(torch.ones(2), name="open")
    assert running.has_open_operations()
    hvd.synchronize(handle)
    assert not running.has_open_operations()


def test_the_live_half_trains_in_one_rank(running: Switcher) -> None:
    running.load()
    running.stop()
    running._use_spare()
    assert horovod_live.start("cpu", {}) == (0, 1)
    model = torch.nn.Linear(4, 2)
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    wrapped, optimizer = horovod_live.wrap(model, sgd, {}, passes=2)
    assert wrapped is model
    assert type(optimizer).__mro__[1] is torch.optim.SGD
    assert optimizer.backward_passes_per_step == 2
    assert horovod_live.wrap(model, sgd, {})[1].backward_passes_per_step == 1
    assert horovod_live.agree(41) == 41
    tensor = torch.tensor([3.0, 5.0])
    handle = horovod_live.begin_allreduce(tensor, "live")
    horovod_live.wait(handle)
    horovod_live.broadcast(tensor, "live too")
    assert tensor.tolist() == [3.0, 5.0]
    late = horovod_live.begin_allreduce(torch.ones(1), "late")
    while not horovod_live.is_done(late):
        pass
    assert horovod_live.is_done(late)
    horovod_live.wait(late)
    horovod_live.finish()
    assert not running._horovod.is_initialized()


def test_knobs_are_told_as_they_were_set_at_launch(running: Switcher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert running.current() == {
        "fusion_threshold_mb": 128.0,
        "cycle_time_ms": 1.0,
        "cache_capacity": 1024,
        "hierarchical_allreduce": False,
        "torus_allreduce": False,
    }
    for name, text in zip(VARIABLES, ("524288", "2.5", "0", "1", "1"), strict=False):
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("HOROVOD_CACHE_CAPACITY", "")
    assert running.current() == {
        "fusion_threshold_mb": 0.5,
        "cycle_time_ms": 2.5,
        "cache_capacity": 1024,
        "hierarchical_allreduce": True,
        "torus_allreduce": True,
    }


@pytest.mark.parametrize("name", switching._FORBIDDING)
def test_what_forbids_switches_is_said(running: Switcher, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("", "0", "False"):
        monkeypatch.setenv(name, text)
        assert running.refusal() == ""
    monkeypatch.setenv(name, "1")
    assert running.refusal() == switching._FORBIDDING[name]


def test_horovod_has_to_run(running: Switcher) -> None:
    assert running.refusal() == ""
    running.stop()
    assert running.refusal() == "Horovod is not running"


def test_this_build_of_horovod_can_be_switched() -> None:
    needs.horovod()
    assert why_not_here() == ""
    server = rendezvous_server()
    assert (callable(server.start), callable(server.init)) == (True, True)
