"""What the agent captures of real training scripts when it is asked for a trace."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from scalescope.jobs.plan import AGENT_HOOK, TRACED_ALLOCATOR
from scalescope.traces.marks import read_marks
from scalescope.traces.readers import read_trace
from watched import BEGINNING, END_OF_TWO, TWO_RANKS, Forked

pytestmark = pytest.mark.launches

LOADED = (
    BEGINNING
    + """
from torch.utils.data import DataLoader, TensorDataset
for epoch in range(3):
    model.train()
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=4):
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    model.eval(); model(torch.randn(4, 8))
"""
)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """Runs scripts that are asked for the steps from 6 up to 13, in forks of one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALESCOPE_TRACE", "6:8:3")
        traced = Forked(tmp_path_factory.mktemp("traced"))
    with traced.server:
        yield traced


def trace_of(folder: Path, rank: int = 0) -> dict:
    return json.loads(gzip.decompress((folder / f"trace-rank{rank}.json.gz").read_bytes()))


def numbers(trace: dict) -> list[int]:
    """Of the steps that the profiler marked."""
    names = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    return sorted(int(name.removeprefix("ProfilerStep#")) for name in names if name.startswith("ProfilerStep#"))


def test_the_profiler_is_on_in_the_steps_that_were_asked_for(traced: Forked) -> None:
    log = traced(BEGINNING + "for _ in range(20): step()")
    trace = trace_of(traced.folder)
    assert numbers(trace) == list(range(6, 14))
    optimizers = [event for event in trace["traceEvents"] if event["name"].startswith("Optimizer.step#")]
    assert len(optimizers) == 8  # the last one is closed too
    assert any(event.get("args", {}).get("Input Dims") for event in trace["traceEvents"])
    assert len(log.steps()) == 20
    marks = read_marks(traced.folder / "marks-rank0.jsonl")
    assert marks.numbers[marks.traced].tolist() == list(range(6, 14))


def test_a_script_that_ends_early_leaves_what_was_captured(traced: Forked) -> None:
    traced(BEGINNING + "for _ in range(10): step()\ntime.sleep(0.2)")
    assert numbers(trace_of(traced.folder)) == [6, 7, 8, 9]
    assert not list(traced.folder.glob("trace-*.json"))


def test_a_script_that_ends_before_the_first_captured_step_leaves_marks(traced: Forked) -> None:
    (traced.folder / "trace-rank0.json.gz").unlink(missing_ok=True)
    traced(BEGINNING + "for _ in range(4): step()")
    assert not list(traced.folder.glob("*.json.gz"))
    assert len(read_marks(traced.folder / "marks-rank0.jsonl").numbers) == 4


def test_writing_the_trace_is_no_step(traced: Forked) -> None:
    slow = """
import gzip
packed = gzip.open
def slow(*arguments, **options):
    time.sleep(0.5)
    return packed(*arguments, **options)
gzip.open = slow
"""
    steps = traced(BEGINNING + slow + "for _ in range(20): step()").steps()
    assert numbers(trace_of(traced.folder)) == list(range(6, 14))
    assert len(steps) == 20
    assert steps[14].start - steps[13].end > 0.5e9
    assert all(later.start == step.end for step, later in pairwise(steps[6:14]))


def test_marks_tell_the_parts_of_a_step_apart(traced: Forked) -> None:
    traced(LOADED)
    marks = read_marks(traced.folder / "marks-rank0.jsonl")
    assert marks.numbers.tolist() == list(range(30))
    assert (marks.rank, marks.world_size, marks.engine, marks.device) == (0, 1, "none", "cpu")
    for part in (marks.forward, marks.backward, marks.optimizer):
        inside = np.searchsorted(marks.starts_s, part.starts, side="right") - 1
        assert inside.tolist() == list(range(30))  # once in every step; evaluation is none
        assert np.all(part.ends <= marks.ends_s)
    assert np.all(marks.forward.ends <= marks.backward.starts)
    assert np.all(marks.backward.ends <= marks.optimizer.starts)
    assert len(marks.input.starts) >= 29
    assert not len(marks.synchronize.starts)


def test_optimizers_that_take_turns_are_captured_as_one_step(traced: Forked) -> None:
    script = (
        BEGINNING
        + """
other = torch.nn.Linear(8, 1)
second = torch.optim.Adam(other.parameters())
for _ in range(18):
    step()
    second.zero_grad(); other(torch.randn(4, 8)).square().mean().backward(); second.step()
"""
    )
    assert len(traced(script).steps()) == 18
    trace = trace_of(traced.folder)
    assert numbers(trace) == list(range(6, 14))
    names = [event["name"] for event in trace["traceEvents"] if event["name"].startswith("Optimizer.step#")]
    assert names.count("Optimizer.step#SGD.step") == names.count("Optimizer.step#Adam.step") == 8


def test_workers_of_a_loader_write_no_marks(traced: Forked) -> None:
    traced(LOADED.replace("batch_size=4)", "batch_size=4, num_workers=1)"))
    assert [path.name for path in traced.folder.glob("marks-*")] == ["marks-rank0.jsonl"]
    assert numbers(trace_of(traced.folder)) == list(range(6, 14))


def test_a_full_disk_is_reported_in_one_line_and_training_goes_on(traced: Forked) -> None:
    full = """
import gzip
def full(*arguments, **options):
    raise OSError(28, "No space left on device")
gzip.open = full
"""
    assert len(traced(BEGINNING + full + "for _ in range(20): step()").steps()) == 20
    assert traced.stderr.count("scalescope: this rank is not traced: No space left on device") == 1
    assert "Traceback" not in traced.stderr
    assert not list(traced.folder.glob("trace-*.json"))


def test_a_script_that_profiles_itself_keeps_its_profiler(traced: Forked) -> None:
    script = (
        BEGINNING
        + """
for _ in range(BEFORE): step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
    for _ in range(3): step()
print(sum(event.name.startswith("Optimizer.step") for event in own.events()))
for _ in range(10): step()
"""
    )
    traced(script.replace("BEFORE", "10"))  # in the middle of what is captured
    assert traced.stdout.strip() == "3"
    assert numbers(trace_of(traced.folder)) == [6, 7, 8, 9]
    traced(script.replace("BEFORE", "4"))  # when the first captured step comes
    assert traced.stdout.strip() == "3"
    assert "not traced: the script profiles itself" in traced.stderr


def test_a_traced_training_ends_with_the_same_parameters(traced: Forked, plain: Forked) -> None:
    script = LOADED + "\nimport hashlib\nprint(hashlib.sha256(model[0].weight.detach().numpy().tobytes()).hexdigest())"
    (traced.folder / "trace-rank0.json.gz").unlink(missing_ok=True)
    traced(script)
    assert len(traced.stdout.strip()) == len(hashlib.sha256().hexdigest())
    assert numbers(trace_of(traced.folder)) == list(range(6, 14))
    plain.run(script)
    assert plain.stdout == traced.stdout


def test_both_ranks_capture_the_same_steps(traced: Forked) -> None:
    (traced.folder / "trace-rank0.json.gz").unlink(missing_ok=True)
    script = """
import time, torch
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(18):
    if rank == 1: time.sleep(0.005)
    optimizer.zero_grad(); model(torch.randn(4, 8)).square().mean().backward(); optimizer.step()
"""
    assert len(traced.ranks(TWO_RANKS + script + END_OF_TWO)) == 2
    for rank in (0, 1):
        trace = trace_of(traced.folder, rank)
        assert numbers(trace) == list(range(6, 14))
        assert (trace["distributedInfo"]["rank"], trace["distributedInfo"]["world_size"]) == (rank, 2)
        assert any(event["name"] == "gloo:all_reduce" for event in trace["traceEvents"])
    for path in traced.folder.glob("*-rank1.*"):  # other tests have one rank
        path.unlink()


@pytest.fixture(scope="module")
def from_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """Runs scripts that are asked for their first six steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALESCOPE_TRACE", "0:6:0")
        forked = Forked(tmp_path_factory.mktemp("from_start"))
    with forked.server:
        yield forked


def test_capture_from_the_start_holds_the_first_step_with_its_first_batch(from_start: Forked) -> None:
    slow = """
from torch.utils.data import DataLoader, TensorDataset
class Slow(TensorDataset):
    def __getitem__(self, at):
        time.sleep(0.2 if at == 0 else 0)
        return super().__getitem__(at)
for (x,) in DataLoader(Slow(torch.randn(40, 8)), batch_size=4):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
    from_start(BEGINNING + slow)
    path = from_start.folder / "trace-rank0.json.gz"
    assert numbers(trace_of(from_start.folder)) == list(range(6))
    marks = read_marks(from_start.folder / "marks-rank0.jsonl")
    assert marks.numbers[marks.traced].tolist() == list(range(6))
    trace = read_trace(path, marks)
    assert len(trace.starts_s) == 6
    assert trace.parts.input is not None
    assert trace.parts.input[0] > 0.19, "the first batch was fetched before there was a profiler"
    parts = (trace.parts.compute, trace.parts.optimizer, trace.parts.input, trace.parts.other)
    assert sum(part[0] for part in parts if part is not None) == pytest.approx(trace.parts.step[0])


TOUCHED = """
import os
from agent.capture import _resident_bytes, touch
before = _resident_bytes()
touch(150 << 20)
print(before, _resident_bytes(), end=" ")
touch(1 << 60)
print(_resident_bytes(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
"""


def test_touched_memory_stays_with_the_process_and_leaves_most_of_the_machine_to_others() -> None:
    env = {**os.environ, **TRACED_ALLOCATOR, "PYTHONPATH": str(AGENT_HOOK.parents[1])}
    done = subprocess.run([sys.executable, "-c", TOUCHED], env=env, capture_output=True, text=True, check=True)
    before, after, most, machine = map(int, done.stdout.split())
    assert after - before >= 150 << 20
    assert most < before + machine / 8
