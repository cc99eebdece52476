"""`scalescope explain` on real traces: samples, and jobs in which something was planted."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import needs
from command_line import CommandLine
from scalescope.records.explanation import Explanation
from scalescope.records.store import load

TRACES = Path(__file__).parents[1] / "data" / "traces"
SLOW = str(Path(__file__).parents[2] / "examples" / "slow_training.py")
PARTS = {"compute", "exposed_communication", "input", "optimizer", "other"}


def explained(scalescope: CommandLine, *words: str) -> dict:
    return json.loads(scalescope.in_this_process("explain", *words, "--json").stdout)


def captured(scalescope: CommandLine, engine: str, *options: str, launcher: str = "", **env: str) -> dict:
    """A job of two ranks that is captured and explained now."""
    words = ["--np", "2", "--engine", engine, "--threads-per-rank", "1", "-o", "out", "--json"]
    words += ["--launcher", launcher] if launcher else []
    words += [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    return json.loads(scalescope("explain", *words, "--", sys.executable, SLOW, "--engine", engine, *options).stdout)


@pytest.fixture
def gloo_traces() -> list[str]:
    folder = TRACES / "kineto" / "gloo_small"
    return sorted(str(path) for path in folder.iterdir())


def test_profiler_traces_of_two_ranks(scalescope: CommandLine, gloo_traces: list[str]) -> None:
    document = explained(scalescope, *gloo_traces)
    assert (document["kind"], document["ranks"], document["steps"]) == ("profiler traces", 2, 4)
    assert set(document["accounting"]) == PARTS
    assert sum(document["accounting"].values()) == pytest.approx(1, abs=1e-3)
    assert 0 < document["hidden_communication"] < 1
    assert document["lost"] == {"events": 0, "bytes": 0, "reason": "", "files": []}
    assert max(clock["residual_s"] for clock in document["clocks"]) < 300e-6


def test_a_bare_timeline_leaves_out_what_it_cannot_tell(scalescope: CommandLine) -> None:
    (timeline,) = (TRACES / "horovod").glob("mpi_cnn*")
    document = explained(scalescope, str(timeline))
    assert document["kind"] == "horovod timeline"
    assert set(document["accounting"]) == {"exposed_communication", "other"}
    assert sum(document["accounting"].values()) == pytest.approx(1, abs=1e-3)
    assert "rank unknown: cached negotiation" in document["straggler_note"]
    assert document["horovod"]["collectives_s"].keys() == {"MPI_ALLREDUCE"}


def test_explaining_needs_no_torch(scalescope: CommandLine, gloo_traces: list[str]) -> None:
    program = (
        "import sys; from scalescope.cli import run; code = run(['explain', *sys.argv[1:], '--quiet']); "
        "sys.exit(3 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *gloo_traces], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert " A traced " in done.stdout


def test_everything_is_written_and_can_be_read_again(scalescope: CommandLine, gloo_traces: list[str]) -> None:
    scalescope("explain", *gloo_traces, "-o", "out", "--export", "out/perfetto.json", pictures=True)
    folder = scalescope.folder / "out"
    again = load(folder / "explanation.json", Explanation)
    assert again.ranks == (0, 1)
    assert again.shown_step is not None
    names = ("accounting", "step", "step_times")
    assert all((folder / f"{name}.{ending}").stat().st_size > 1000 for name in names for ending in ("png", "html"))
    events = json.loads((folder / "perfetto.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert (folder / "explanation.csv").read_text().count("\n") == 1 + 2 * 4


def test_cut_files_are_read_and_the_loss_is_said(scalescope: CommandLine) -> None:
    whole = (TRACES / "horovod" / "gloo_ops.json").read_bytes()
    (scalescope.folder / "cut.json").write_bytes(whole[: len(whole) * 2 // 3])
    document = explained(scalescope, "cut.json")
    assert document["lost"]["bytes"] > 0
    assert document["lost"]["reason"]


NO_TRACES: dict[str, Callable[[], bytes]] = {
    "empty.json": bytes,
    "other.json": lambda: b'{"some": "thing"}',
    "noise.json": lambda: bytes(range(256)) * 20,
    "bomb.json.gz": lambda: gzip.compress(b"[" + b" " * (80 << 20), 9),
    "deep.json": lambda: b"[" * 10_000,
    "empty.json.gz": lambda: gzip.compress(b"", mtime=0),
}


@pytest.mark.parametrize("name", NO_TRACES)
def test_what_is_no_trace_is_one_clear_line(scalescope: CommandLine, name: str) -> None:
    (scalescope.folder / name).write_bytes(NO_TRACES[name]())
    done = scalescope.in_this_process("explain", name, code=2)
    assert done.stderr.startswith("scalescope: ")
    assert len(done.stderr.splitlines()) == 1
    assert name in done.stderr


def test_names_in_a_trace_reach_neither_terminal_nor_page(scalescope: CommandLine) -> None:
    evil = "\\u001b]0;owned\\u0007[bold]<script>alert(1)</script>"
    text = (TRACES / "horovod" / "gloo_ops.json").read_text().replace("allreduce.", f"allreduce.{evil}.")
    (scalescope.folder / "evil.json").write_text(text)
    done = scalescope("explain", "evil.json", "-o", "out", pictures=True)
    assert "\x1b]0" not in done.stdout
    for page in (scalescope.folder / "out").glob("*.html"):
        assert "<script>alert(1)" not in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "ddp"), "--engine goes with a MODEL or a command"),
        (("--export", "x.json", "../examples/data/lab11.csv"), ""),
        (("missing.json",), "missing.json"),
    ],
)
def test_misuse_is_one_clear_line(scalescope: CommandLine, words: tuple[str, ...], said: str) -> None:
    done = scalescope.in_this_process("explain", *words, code=2)
    assert said in done.stderr


@pytest.mark.alone  # next to other tests both ranks are late by chance, and then nobody may be named
@pytest.mark.parametrize("backend", ["ddp", "mpirun"])
def test_a_rank_that_sleeps_is_named(scalescope: CommandLine, backend: str) -> None:
    if backend != "ddp":
        needs.horovod()
    launcher = "" if backend == "ddp" else backend
    document = captured(scalescope, "ddp" if backend == "ddp" else "horovod", "--late-ms", "100", launcher=launcher)
    assert document["kind"] == "run folder"
    assert document["straggler"] == 1
    assert document["findings"][0]["id"] == "straggler"
    assert "Rank 1" in document["findings"][0]["sentence"]
    assert sum(document["accounting"].values()) == pytest.approx(1, abs=1e-3)


def test_a_slow_loader_is_found(scalescope: CommandLine) -> None:
    document = captured(scalescope, "ddp", "--loader-ms", "60")
    assert document["findings"][0]["id"] == "input_bound"
    assert document["accounting"]["input"] > 0.3
    assert explained(scalescope, "out")["findings"] == document["findings"]  # from its result folder


def test_a_long_cycle_is_found(scalescope: CommandLine) -> None:
    needs.horovod()
    document = captured(scalescope, "horovod", HOROVOD_CYCLE_TIME="80")
    found = {finding["id"]: finding for finding in document["findings"]}
    assert "long_cycle" in found
    assert found["long_cycle"]["gain"] > 0.3


def test_a_slow_first_epoch_is_told_with_the_log(scalescope: CommandLine) -> None:
    needs.horovod()
    timeline, log = scalescope.folder / "timeline.json", scalescope.folder / "train.log"
    program = Path(sys.executable).parent / "horovodrun"
    words = [str(program), "--gloo", "-np", "2", "--timeline-filename", str(timeline), sys.executable, SLOW]
    words += ["--engine", "horovod", "--epochs", "3", "--steps", "20", "--first-epoch-ms", "80"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200, env=alone)
    lines = [line.partition("<stdout>:")[2] for line in done.stdout.splitlines() if "Epoch" in line]
    log.write_text("\n".join(lines) + "\n")
    document = explained(scalescope, str(timeline), str(log))
    assert [epoch["number"] for epoch in document["epochs"]] == [1, 2, 3]
    assert [epoch["steps"] for epoch in document["epochs"]] == [20, 20, 19]
    assert "first_epoch" in {finding["id"] for finding in document["findings"]}


def test_a_model_is_captured_as_measure_takes_it_unless_a_file_has_its_name(
    scalescope: CommandLine, gloo_traces: list[str]
) -> None:
    options = ("--input", "64", "--batch", "8", "--device", "cpu", "--from-start", "--cpu-detail", "--dry-run")
    shown = scalescope.in_this_process("explain", "mlp", *options).stdout
    assert "SCALESCOPE_TRACE=0:40:10:full" in shown
    assert "ddp-np2-b8" in shown
    (scalescope.folder / "mlp").mkdir()
    for at, path in enumerate(gloo_traces):
        shutil.copy(path, scalescope.folder / "mlp" / f"rank{at}.json.gz")
    assert explained(scalescope, "mlp")["kind"] == "profiler traces"
