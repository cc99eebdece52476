"""Parts of a step on a clock that counts its readings, and what a step needs of memory."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from scalescope.host import memory_limit_bytes
from scalescope.jobs import step_clock
from scalescope.jobs.step_clock import StepClock, _between, cpu_s, forget_peak, memory_limit, peak_bytes
from scalescope.records.profile import WorkloadSpec
from scalescope.workloads import load

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    """Of a small model; its third parameter is not trained. Every reading is one second after the one before."""
    readings = iter(range(1000))
    monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter=lambda: float(next(readings))))
    workload = load(WorkloadSpec(model="mlp", model_args={"width": 8, "depth": 2}))
    list(workload.model.parameters())[2].requires_grad_(False)
    made = StepClock(workload, CPU)
    made.use(4)
    return made


def test_parts_of_a_step_follow_each_other(clock: StepClock) -> None:
    trained = [at for at, each in enumerate(clock.model.parameters()) if each.requires_grad]
    for _ in range(2):
        times = clock.step()
        assert (times.forward_s, times.backward_s, times.optimizer_s) == (1, len(trained) + 1, 1)
        assert sorted(times.ready_s) == trained
        assert sorted(times.ready_s.values()) == list(range(1, len(trained) + 1))
        assert times.ready_s[trained[0]] > times.ready_s[trained[-1]], "backward begins at the end"
        assert times.cpu_s >= 0


def test_a_step_trains_and_begins_with_new_gradients(clock: StepClock) -> None:
    parameter = next(clock.model.parameters())
    before = parameter.detach().clone()
    clock.step()
    assert not torch.equal(parameter, before)
    for group in clock._optimizer.param_groups:
        group["lr"] = 0.0
    gradients = []
    for _ in range(2):  # from the same weights, the same gradient
        clock.step()
        assert parameter.grad is not None
        gradients.append(parameter.grad.clone())
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-7)


def test_a_batch_has_as_many_samples_as_asked(clock: StepClock) -> None:
    seen: list[int] = []
    clock.model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    clock.step()
    clock.use(7)
    clock.step()
    assert seen == [4, 7]


def test_the_loss_compares_with_a_target_of_the_same_batch(clock: StepClock) -> None:
    seen: list[Any] = []

    def loss(output: Any, target: Any) -> Any:
        seen.append(len(target))
        return (output.sum(dim=1) - target).square().mean()

    clock._workload = dataclasses.replace(clock._workload, loss=loss, target=torch.zeros)
    clock.use(5)
    clock.step()
    assert seen == [5]


class Event:
    """A mark of a GPU."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, later: "Event") -> float:
        return later.at_ms - self.at_ms


def test_marks_are_clock_readings_or_events_in_milliseconds() -> None:
    assert _between(1.5, 4.0) == 2.5
    assert _between(Event(1500.0), Event(4000.0)) == pytest.approx(2.5)


def test_cpu_time_is_of_user_and_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrusage", lambda _: SimpleNamespace(ru_utime=3.0, ru_stime=0.5))
    assert cpu_s() == 3.5


def test_the_peak_counts_from_when_it_was_forgotten() -> None:
    forget_peak(CPU)
    before = peak_bytes(CPU)
    block: Any = bytearray(b"x" * 2**26)
    during = peak_bytes(CPU)
    assert during - before > 2**25
    del block
    assert peak_bytes(CPU) == pytest.approx(during, rel=0.05)
    forget_peak(CPU)
    assert peak_bytes(CPU) < during - 2**25
    rss = psutil.Process().memory_info().rss
    assert peak_bytes(CPU) == pytest.approx(rss, rel=0.2)


def test_the_limit_is_the_smaller_of_machine_and_control_group() -> None:
    assert memory_limit(CPU) == int(min(psutil.virtual_memory().total, memory_limit_bytes()))
