"""From files to explanations: what belongs together, what does not, and what an estimate adds."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from scalescope.diagnosis.explanation import explained
from scalescope.diagnosis.sources import explain, with_estimate
from scalescope.diagnosis.traces import read_job
from scalescope.errors import UsageError
from scalescope.intervals import between
from scalescope.records.autotune import Autotune
from scalescope.records.cluster_file import write_cluster
from scalescope.records.explanation import Explanation
from scalescope.records.scaling import Scaling
from scalescope.records.store import save
from simulator.made import described, profile

DATA = Path(__file__).parents[1] / "data"
TRACES = DATA / "traces"
EXAMPLES = Path(__file__).parents[2] / "examples" / "data"
GLOO = TRACES / "kineto" / "gloo_small"
TIMELINE = TRACES / "horovod" / "gloo_mlp_mark.json.gz"


def test_every_kind_is_recognised_by_what_it_holds(tmp_path: Path) -> None:
    disguised = tmp_path / "something.log"
    shutil.copy(TIMELINE, disguised)
    for path, kind in ((disguised, Explanation), (GLOO, Explanation), (EXAMPLES / "lab11.csv", Scaling)):
        assert isinstance(explain([path]), kind)
    assert isinstance(explain([DATA / "autotune" / "mpi_switches_held.csv"]), Autotune)


@pytest.mark.launches
def test_explain_of_a_trace_loads_nothing_that_trains_launches_or_draws() -> None:
    """Start-up is a quarter of the whole command on a trace of 200 MB."""
    code = "import sys; from scalescope.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", code, "explain", "--json", str(TIMELINE)]
    loaded = set(subprocess.run(words, capture_output=True, text=True, check=True).stderr.split())
    assert "scalescope.traces.horovod.reading" in loaded
    others = {"torch", "scipy", "altair", "importlib.metadata", "scalescope.jobs.collect", "scalescope.workloads"}
    assert not loaded & others


def test_an_autotune_log_that_ends_in_zeros_is_read(tmp_path: Path) -> None:
    killed = tmp_path / "autotune.csv"
    killed.write_bytes((DATA / "autotune" / "mpi_switches_held.csv").read_bytes()[:700] + bytes(200))
    assert isinstance(explain([killed]), Autotune)


def test_a_folder_of_traces_is_the_same_as_its_files() -> None:
    files = sorted(GLOO.iterdir())
    assert explain([GLOO]) == explain(files) == explain(files[::-1])


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ([TIMELINE, TRACES / "horovod" / "mpi_ops.json"], "explain one at a time"),
        ([TIMELINE, GLOO], "one kind at a time"),
        ([*sorted(GLOO.iterdir()), sorted(GLOO.iterdir())[0]], "one rank"),
        ([TIMELINE, EXAMPLES / "cifar10-1gpu.log", EXAMPLES / "cifar10-2gpus.log"], "one log of the same run"),
    ],
)
def test_what_does_not_belong_together_is_refused(paths: list[Path], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        explain(paths)


def test_an_estimate_goes_with_traces_only() -> None:
    with pytest.raises(UsageError, match="goes with traces"):
        explain([EXAMPLES / "lab11.csv"], estimate=GLOO)
    with pytest.raises(UsageError, match=r"cluster\.toml"):
        explain([GLOO], estimate=GLOO)


def test_the_probe_stands_beside_transfers(tmp_path: Path) -> None:
    write_cluster(described(1000.0), tmp_path / "cluster.toml")
    save(profile(), tmp_path / "profile.json")
    found = explain([GLOO], estimate=tmp_path)
    assert isinstance(found, Explanation)
    assert all(transfer.probed_s and transfer.probed_s > 0 for transfer in found.transfers)
    assert found.predicted_step is None, "a trace alone does not say its batch size"


def test_a_representative_step_is_drawn_from_all_ranks() -> None:
    read = read_job(sorted(GLOO.iterdir()))
    found = explained(read)
    assert found.shown_step is not None
    assert {span.rank for span in found.shown_step.spans} == {0, 1}
    assert min(step.start_s for step in found.shown_step.steps) == 0
    steady = sorted(max(part) for part in zip(*_durations(found), strict=True))
    shown = max(step.end_s - step.start_s for step in found.shown_step.steps)
    assert steady[0] <= shown <= steady[-1]


def _durations(found: Explanation) -> list[list[float]]:
    return [[each.parts.step_s for each in found.steps if each.rank == rank] for rank in found.ranks]


def test_horovods_table_counts_the_steps_that_the_accounting_counts() -> None:
    job = read_job([TRACES / "horovod" / "mpi_cnn.json.gz"])
    found, trace = explained(job), job.traces[0]
    steady = slice(found.warmup_steps, None)
    assert found.warmup_steps > 1
    assert found.horovod is not None
    assert found.accounting is not None
    assert trace.negotiation is not None
    assert found.accounting.step_s == pytest.approx((trace.ends_s - trace.starts_s)[steady].mean())
    negotiated = between(trace.negotiation, trace.starts_s[steady], trace.ends_s[steady])
    assert found.horovod.negotiation_s == pytest.approx(negotiated.mean())


def test_an_export_is_written_from_the_same_reading(tmp_path: Path) -> None:
    made = tmp_path / "all.json"
    assert isinstance(explain([GLOO], export_to=made), Explanation)
    assert len(json.loads(made.read_bytes())["traceEvents"]) > 100
    with pytest.raises(UsageError, match="goes with traces"):
        explain([EXAMPLES / "lab11.csv"], export_to=tmp_path / "table.json")


def test_skew_is_told_step_by_step() -> None:
    found = explain([GLOO])
    assert isinstance(found, Explanation)
    assert len(found.skew_s) == 4
    assert all(0 <= skew < (found.step_s or 0.0) for skew in found.skew_s)


def test_one_rank_of_two_is_explained_and_the_missing_one_is_said() -> None:
    found = explain(sorted(GLOO.iterdir())[:1])
    assert isinstance(found, Explanation)
    assert any("1 of 2 ranks were given" in note for note in found.notes)
    assert found.straggler is None
    assert found.transfers
    assert all(transfer.wait_s is None for transfer in found.transfers)


def test_parts_of_every_step_and_rank_add_up() -> None:
    for paths in ([GLOO], [TIMELINE], [TRACES / "kineto" / "nccl"], [TRACES / "kineto" / "cuda_gloo"]):
        found = explain(paths)
        assert isinstance(found, Explanation)
        assert found.steps
        for account in found.steps:
            known = msgspec.structs.asdict(account.parts)
            whole = known.pop("step_s")
            known.pop("hidden_s")
            waiting = known.pop("waiting_s")
            assert (waiting is None) == (paths == [TRACES / "kineto" / "nccl"]), "a profiler trace alone cannot tell"
            assert waiting is None or -1e-9 <= waiting <= known["exposed_s"] + 1e-9
            assert sum(value for value in known.values() if value is not None) == pytest.approx(whole, rel=1e-3)


def test_an_estimate_beside_needs_a_cluster(tmp_path: Path) -> None:
    read = read_job([TIMELINE])
    with pytest.raises(UsageError, match="holds no cluster"):
        with_estimate(explained(read), read, tmp_path)


def planted(folder: Path, testing_s: float) -> tuple[Path, Path]:
    """A real timeline of 60 steps with testing after 20 and 40 of them, and the log of these three epochs."""
    events = json.loads(gzip.decompress((TRACES / "horovod" / "mpi_cnn.json.gz").read_bytes()))
    starts = read_job([TRACES / "horovod" / "mpi_cnn.json.gz"]).traces[0].starts_s
    for event in events:
        later = sum(event.get("ts", 0) >= starts[step] * 1e6 - 1 for step in (20, 40))
        event["ts"] = event.get("ts", 0) + later * testing_s * 1e6
    timeline, log = folder / "timeline.json", folder / "train.log"
    timeline.write_text(json.dumps(events))
    log.write_text("".join(f"Epoch {at}: training 2.0(s) - testing {testing_s}(s)\n" for at in (1, 2, 3)))
    return timeline, log


def test_testing_that_the_log_tells_is_part_of_no_step(tmp_path: Path) -> None:
    def steps(explanation: Explanation) -> list[float]:
        return [step.parts.step_s for step in explanation.steps]

    timeline, log = planted(tmp_path, 0.5)
    untouched, alone, told = (
        explain([TRACES / "horovod" / "mpi_cnn.json.gz"]),
        explain([timeline]),
        explain([timeline, log]),
    )
    longer = [
        at for at, (long, short) in enumerate(zip(steps(alone), steps(untouched), strict=True)) if long > short + 0.4
    ]
    assert longer == [19, 39]
    assert steps(told) == pytest.approx(steps(untouched), abs=1e-5)
    assert "testing after 2 epochs, as the log tells it, is part of no step" in told.notes
    assert [epoch.steps for epoch in told.epochs] == [20, 20, 19]
    last = told.steps[40:]
    covered_s = last[-1].start_s + last[-1].parts.step_s - last[0].start_s
    exposed_s = sum(step.parts.exposed_s or 0.0 for step in last)
    assert told.epochs[-1].exposed_share == pytest.approx(exposed_s / covered_s)
    for step in told.steps:
        parts = (step.parts.exposed_s, step.parts.other_s)
        assert sum(part or 0.0 for part in parts) == pytest.approx(step.parts.step_s)
    log.write_text("".join(f"Epoch {at} took 2.0 s\n" for at in (1, 2, 3)))
    assert steps(explain([timeline, log])) == steps(alone)  # nothing is made up


def test_a_log_whose_testing_no_step_can_hold_changes_nothing(tmp_path: Path) -> None:
    timeline, log = planted(tmp_path, 0.5)
    log.write_text("".join(f"Epoch {at}: training 2.0(s) - testing 60(s)\n" for at in (1, 2, 3)))
    assert explain([timeline, log]).steps == explain([timeline]).steps


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_a_log_may_tell_about_as_many_epochs_as_there_are_steps(tmp_path: Path, more: int) -> None:
    log, steps = tmp_path / "train.log", len(explain([TIMELINE]).steps)
    log.write_text("".join(f"Epoch {at} took 2.0 s\n" for at in range(1, steps + more + 1)))
    assert len(explain([TIMELINE, log]).epochs) == steps + more


def test_traces_may_come_with_the_log_of_the_training_and_that_of_nccl(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"Epoch {at} took 2.0 s\n" for at in range(1, 4)))
    found = explain([TIMELINE, log, DATA / "nccl" / "socket-on-ib.log"])
    assert isinstance(found, Explanation)
    assert len(found.epochs) == 3
    assert found.network is not None
    assert found.network.transport == "Socket"
