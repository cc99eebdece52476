"""Traced launches of models and of unchanged scripts, over both engines."""

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import needs
from command_line import CommandLine
from scalescope.errors import WorkFailed
from scalescope.measurement.capture import traced_commands, traced_run
from scalescope.progress import Progress
from scalescope.records.explanation import TRACE_RECORD, TraceFolder
from scalescope.records.request import MeasureRequest
from scalescope.records.run import Measurement
from scalescope.records.store import load
from scalescope.traces.marks import arrivals, read_marks

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOW_RANK = """
import os, time, torch
import horovod.torch as hvd
hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for _ in range(1000):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 64)).square().mean()
    time.sleep(0.06 * (hvd.rank() == 1))
    loss.backward()
    optimizer.step()
"""


def captured(folder: Path) -> list[set[str]]:
    """The marked steps of every rank's profiler trace."""
    traces = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob("trace-rank*.json.gz"))]
    names = [[event["name"] for event in trace["traceEvents"]] for trace in traces]
    return [{name for name in rank if name.startswith("ProfilerStep#")} for rank in names]


def test_measure_makes_one_more_launch_per_point_that_does_not_count(scalescope: CommandLine) -> None:
    words = ("--model-arg", "width=64", "--np", "2", "--batch", "8", "--steps", "24", "--trace", "-o", "out", "--json")
    done = scalescope("measure", "mlp", *words)
    assert [point["launches"] for point in json.loads(done.stdout)["points"]] == [1]
    measurement = load(scalescope.folder / "out" / "measurement.json", Measurement)
    assert measurement.stopped
    assert measurement.traces == ("traces/ddp-np2-b8",)
    for path in measurement.traces:
        folder = scalescope.folder / "out" / path
        trace = load(folder / TRACE_RECORD, TraceFolder)
        first, *others = captured(folder)
        assert len(first) == trace.steps
        assert all(other == first for other in others)
        assert len(trace.ranks) == trace.np == trace.point.np
        assert f"Traced {trace.point.label}: {trace.steps} steps" in done.stderr
    assert trace.engine == "ddp"
    assert trace.overhead is not None
    assert trace.overhead.low <= trace.overhead.value <= trace.overhead.high
    before = (folder / TRACE_RECORD).stat().st_mtime_ns
    scalescope("measure", "--resume", "out", "--launches", "1")
    assert (folder / TRACE_RECORD).stat().st_mtime_ns == before
    assert load(scalescope.folder / "out" / "measurement.json", Measurement).traces == measurement.traces


def test_a_dry_run_says_that_traced_launches_follow(scalescope: CommandLine) -> None:
    done = scalescope.in_this_process("measure", "mlp", "--np", "1", "--trace", "--dry-run")
    assert done.stdout.count("once more after all others") == 2
    assert "once more" not in scalescope.in_this_process("measure", "mlp", "--np", "1", "--dry-run").stdout
    (line,) = traced_commands(MeasureRequest(command=(sys.executable, "train.py"), np=(2,)))
    assert "SCALESCOPE_TRACE=21:20:10" in line


BY_HAND = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    model(torch.randn(8, 256)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def explained(scalescope: CommandLine, *command: str) -> tuple[dict, TraceFolder]:
    """The JSON of two ranks that are traced and explained now, and what was captured of them."""
    words = ("explain", "--np", "2", "-o", "out", "--json", "--", sys.executable)
    found = json.loads(scalescope(*words, *command).stdout)
    (folder,) = (scalescope.folder / "out" / "traces").iterdir()
    return found, load(folder / TRACE_RECORD, TraceFolder)


def check_exchange(found: dict, trace: TraceFolder, engine: str, operations: set[str]) -> None:
    """A script is named after the exchange that its ranks show."""
    assert (found["engine"], set(found["collectives"])) == (engine, operations)
    assert {each["operation"] for each in found["transfers"]} == operations
    assert found["step_s"] == trace.untraced_step_s
    assert "no_sync" not in json.dumps(found["findings"])


def test_a_script_that_exchanges_by_hand_is_named_after_that(scalescope: CommandLine) -> None:
    (scalescope.folder / "train.py").write_text(BY_HAND)
    check_exchange(*explained(scalescope, "train.py"), "collectives", {"allreduce"})


def test_the_example_that_shards_slowly_shows_what_it_plants(scalescope: CommandLine) -> None:
    found, trace = explained(
        scalescope, str(EXAMPLES / "slow_sharded.py"), "--accumulate", "4", "--blocks", "2", "--batch", "8"
    )
    check_exchange(found, trace, "fsdp2", {"allgather", "reducescatter"})
    assert "synchronized_micro_batches" in {each["id"] for each in found["findings"]}


def test_a_pattern_cannot_be_traced(scalescope: CommandLine) -> None:
    words = ("--trace", "--pattern", "took", "--", sys.executable, "train.py")
    assert "leave --pattern or --trace out" in scalescope.in_this_process("measure", *words, code=2).stderr


def test_a_script_over_ddp_ends_after_the_steps_that_are_needed(tmp_path: Path, scripts: Path) -> None:
    command = (sys.executable, str(scripts / "ddp.py"), "--steps", "1000")
    folder = traced_run(MeasureRequest(command=command, np=(2,), folder=str(tmp_path / "out")), Progress())
    trace = load(folder / TRACE_RECORD, TraceFolder)
    assert (trace.engine, trace.backend, trace.np, trace.steps) == ("ddp", "gloo", 2, 20)
    first, second = captured(folder)
    assert first == second == {f"ProfilerStep#{number}" for number in range(21, 41)}
    marks = [read_marks(folder / rank.marks) for rank in trace.ranks]
    assert [len(rank.numbers) for rank in marks] == [53, 53]


def test_a_script_that_ends_too_early_is_launched_again_for_the_steps_it_has(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(15):\n    optimizer.zero_grad(); model(torch.randn(4, 8)).sum().backward(); optimizer.step()\n"
    )
    command = (sys.executable, str(tmp_path / "train.py"))
    request = MeasureRequest(command=command, np=(1,), launcher="own", folder=str(tmp_path / "out"))
    folder = traced_run(request, Progress())
    trace = load(folder / TRACE_RECORD, TraceFolder)
    assert (trace.engine, trace.steps, trace.overhead) == ("none", 10, None)
    assert len(captured(folder)[0]) == 10
    assert "not known" in trace.notes[0]


@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_horovods_timeline_begins_at_its_start_and_marks_name_the_slow_rank(tmp_path: Path, controller: str) -> None:
    needs.horovod()
    if controller == "mpi":
        needs.openmpi()
    (tmp_path / "train.py").write_text(SLOW_RANK)
    command = (sys.executable, str(tmp_path / "train.py"))
    knobs = (f"controller={controller}",)
    folder = traced_run(MeasureRequest(command=command, np=(2,), knobs=knobs, folder=str(tmp_path / "out")), Progress())
    trace = load(folder / TRACE_RECORD, TraceFolder)
    assert (trace.engine, trace.backend, trace.steps, trace.files) == ("horovod", controller, 20, ("timeline.json",))
    assert trace.overhead is not None
    events = json.loads((folder / "timeline.json").read_text())
    assert any(event["name"] == "CYCLE_START" for event in events if event["ph"] == "i")
    began_s = events[0]["args"]["start_time_since_epoch_in_micros"] * 1e-6
    marks = [read_marks(folder / rank.marks) for rank in trace.ranks]
    tensors = {event["pid"]: event["args"].get("name", "") for event in events if event.get("name") == "process_name"}
    gradient = next(pid for pid, name in tensors.items() if name.endswith("0.weight") and "allreduce" in name)
    reduced = [event["ts"] * 1e-6 + began_s for event in events if event.get("pid") == gradient and event["ph"] == "B"]
    steps = np.searchsorted(marks[0].starts_s, reduced) - 1
    assert set(steps.tolist()) == set(range(30))  # from the first step to the last captured one, and no further
    late = {rank: float(np.median(each)) for rank, each in arrivals(marks, warmup=10).items()}
    assert late[1] > 0.03 > late[0]  # on a busy core rank 0 is late, too, but not by as much at most steps
    waits = [rank.synchronize.length / len(rank.numbers) for rank in marks]
    assert waits[0] > waits[1]


def test_a_script_that_fails_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('planted')")
    command = (sys.executable, str(tmp_path / "train.py"))
    with pytest.raises(WorkFailed, match=r"^np1-traced: .*nothing was traced\n(.|\n)*planted"):
        traced_run(MeasureRequest(command=command, np=(1,), folder=str(tmp_path / "out")), Progress())


def test_an_interrupt_leaves_nothing_running(scalescope: CommandLine, scripts: Path) -> None:
    program = (
        "import sys\nfrom scalescope.progress import Progress\nfrom scalescope.measurement.capture import traced_run\n"
        "from scalescope.records.request import MeasureRequest\n"
        "traced_run(MeasureRequest(command=tuple(sys.argv[1:]), np=(2,), folder='out'), Progress())"
    )
    words = (sys.executable, "-c", program, sys.executable, str(scripts / "ddp.py"), "--pause", "1")
    process = subprocess.Popen(words, cwd=scalescope.folder, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(scalescope.folder.glob("out/traces/*/marks-rank*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert scalescope.processes() == []
