"""The real command line with real ranks, on every engine, launcher and kind of program."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

import needs
from command_line import CommandLine
from epochs import assert_learned, epochs_of
from scalescope.records.run import PHASES, Measurement
from scalescope.records.store import load

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, str, str]:
    """A model on one process and on two: where, into the folder `out`, and what was printed to stdout and stderr."""
    scalescope = CommandLine(tmp_path_factory.mktemp("measured"))
    limits = ("--steps", "8", "--launches", "2", "--budget", "1s", "--model-arg", "width=64")
    words = ("mlp", "--np", "1,2", "--scaling", "both", "--batch", "8", *limits, "-o", "out", "--json")
    done = scalescope("measure", *words, pictures=True)
    return scalescope, done.stdout, done.stderr


def document(done) -> dict:
    """What --json printed; it must be the only thing on stdout."""
    return json.loads(done.stdout)


def check_phases(point: dict) -> None:
    """Phases are all there and add up to the launcher's wall time within 2 %."""
    assert set(point["phases"]) == {f"{phase}_s" for phase in PHASES}
    assert all(seconds >= 0 for seconds in point["phases"].values())
    assert sum(point["phases"].values()) == pytest.approx(point["wall_s"], rel=0.02)


def check_throughput(point: dict) -> None:
    """Samples over elapsed steady time."""
    steps = point["steps"] - point["warmup_steps"]
    assert point["throughput"] == pytest.approx(point["global_batch"] * steps / point["phases"]["steady_s"])


def test_a_model_is_measured_on_ddp_with_its_baseline_strong_and_weak(measured) -> None:
    scalescope, stdout, _ = measured
    found = json.loads(stdout)
    points = found["points"]
    expected = (
        [("none", 1, 8, 8), ("ddp", 1, 8, 8), ("ddp", 2, 4, 8)],
        [("none", 1, 8, 8), ("ddp", 1, 8, 8), ("ddp", 2, 8, 16)],
    )
    for scaling, of_it in zip(("strong", "weak"), expected, strict=True):
        assert [
            (point["engine"], point["np"], point["batch"], point["global_batch"])
            for point in points
            if point["scaling"] == scaling
        ] == of_it
    for point in points:
        check_phases(point)
        check_throughput(point)
        assert point["steps"] == 8
    assert len({point["threads_per_rank"] for point in points}) == 1
    assert {curve["scaling"] for curve in found["curves"]} == {"strong", "weak"}
    assert len(found["launches"]) == 4  # what both kinds share is launched once, and the budget ends it after one each
    assert found["stopped"] == "the budget was spent"
    assert len(load(scalescope.folder / "out" / "measurement.json", Measurement).runs) == 4


class Addresses(HTMLParser):
    """What the tags of a page load; scripts are not looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def fetched(page: str) -> list[str]:
    """What a page takes from elsewhere: by its tags, or in the figure that its last script draws."""
    tags = Addresses()
    tags.feed(page)
    figure = re.sub(r'"\$schema": ?"[^"]*"', "", page[page.rindex("<script") :])
    return [*tags.found, *re.findall(r'\w+://[^"]*', figure)]


def test_what_a_measurement_shows_and_draws(measured) -> None:
    scalescope, _, stderr = measured
    assert "Next: scalescope" in stderr
    folder = scalescope.folder / "out"
    assert (folder / "scaling.tex").read_text().count("begin{tabular}") == 2
    for name in ("phases", "throughput", "speedup", "waterfall"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert not (folder / f"{name}.pdf").exists()  # on request only
        assert fetched((folder / f"{name}.html").read_text()) == []


def test_explain_recognises_a_measurement(measured) -> None:
    scalescope, *_ = measured
    folder = json.loads(scalescope.in_this_process("explain", "out", "--json").stdout)
    assert folder == json.loads(scalescope.in_this_process("explain", "out/measurement.json", "--json").stdout)
    assert folder["kind"] == "measurement"
    assert set(folder["speedup"]["end_to_end"]) == {"1", "2"}
    table = json.loads(scalescope.in_this_process("explain", "out/scaling.csv", "--json").stdout)
    for name, values in folder["speedup"].items():
        assert table["speedup"][name] == pytest.approx(values, rel=1e-6)


def test_a_model_is_measured_on_horovod(scalescope) -> None:
    """Over MPI it is measured on two hosts, in test_hosts_and_slurm.py."""
    needs.horovod()
    words = ("--engine", "horovod", "--knob", "controller=gloo", "--knob", "cycle_time_ms=2", "--batch", "2")
    done = scalescope("measure", "cnn", "--np", "2", "--steps", "6", *words, "-o", "out", "--json")
    (point,) = document(done)["points"]
    check_phases(point)
    assert (point["engine_seen"], point["backend"]) == ("horovod", "gloo")
    assert "HOROVOD_CYCLE_TIME=2" in (scalescope.folder / "out" / point["folder"] / "command.txt").read_text()


@pytest.mark.parametrize("script", ["train_single.py", "train_ddp.py", "train_horovod.py"])
def test_the_examples_train_and_run_unchanged(scalescope, script: str) -> None:
    words = ()
    if script == "train_horovod.py":
        needs.horovod()
        words = ("--knob", "controller=gloo")
    np = "1" if script == "train_single.py" else "2"
    command = (sys.executable, str(EXAMPLES / script), "--epochs", "3", "--samples", "256", "--batch-size", "{batch}")
    words += ("--np", np, "--batch", "16", "--threads-per-rank", "1", "-o", "out", "--json", "--show-output")
    done = scalescope("measure", *words, "--", *command)
    (point,) = document(done)["points"]
    check_phases(point)
    assert point["batch"] == 16
    assert point["steps"] == 3 * 256 / 16 / int(np)
    assert point["phases"]["evaluation_s"] > 0
    assert "[rank0] Epoch 2: training" in done.stderr
    output = scalescope.folder / "out" / point["folder"] / "rank0.out"
    assert_learned(epochs_of(output.read_text()))


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "horovodrun"])
def test_every_launcher_starts_a_ddp_script_with_words_that_mean_something_to_the_launcher(
    scalescope, scripts, launcher: str
) -> None:
    if launcher != "torchrun":
        needs.openmpi()
    if launcher == "horovodrun":
        needs.horovod()
    (scalescope.folder / "train.py").write_text(
        "import json, os, runpy, sys\n"
        "with open(f'words{os.environ[\"RANK\"]}.json', 'w') as file: json.dump(sys.argv[1:], file)\n"
        f"sys.argv[1:] = []; runpy.run_path({str(scripts / 'ddp.py')!r}, run_name='__main__')\n"
    )
    own = (
        "--log",
        "run 1",
        "--np",
        "3",
        "-n",
        "2",
        "--n=1",
        "--e",
        "-H",
        "x",
        "--",
        ":",
        "--version",
        "$HOME 'a'\n",
        "",
    )
    words = ("--np", "2", "--launcher", launcher, "--steps", "12", "--json", "-o", "out")
    done = scalescope("measure", *words, "--", sys.executable, "train.py", *own)
    (point,) = document(done)["points"]
    assert (point["engine_seen"], point["backend"], point["steps"]) == ("ddp", "gloo", 12)
    assert [json.loads((scalescope.folder / f"words{rank}.json").read_text()) for rank in (0, 1)] == [[*own]] * 2
    started = (scalescope.folder / "out" / point["folder"] / "command.txt").read_text()
    program = {"torchrun": "torch.distributed.run", "mpirun": "mpirun", "horovodrun": "horovod.runner.launch"}
    assert program[launcher] in started


def test_placeholders_and_environment_reach_the_script(scalescope) -> None:
    (scalescope.folder / "show.py").write_text(
        "import os, sys, torch\nprint(*sys.argv[1:], os.environ['COLOUR'], os.environ['OMP_NUM_THREADS'])\n"
        "w = torch.zeros(2, requires_grad=True); o = torch.optim.SGD([w], lr=1)\n"
        "for _ in range(6): w.sum().backward(); o.step()\n"
    )
    command = (sys.executable, "show.py", "{np}", "{batch}", "{global_batch}", "{launch}", "{run_dir}", "{other}")
    words = ("--np", "1", "--batch", "4", "--env", "COLOUR=blue", "--threads-per-rank", "1", "-o", "out", "--json")
    (point,) = document(scalescope("measure", *words, "--", *command))["points"]
    folder = scalescope.folder / "out" / point["folder"]
    assert (folder / "rank0.out").read_text().split() == [
        "1",
        "4",
        "4",
        folder.name,
        str(folder),
        "{other}",
        "blue",
        "1",
    ]
    check_throughput(point)


def test_output_of_other_frameworks_is_read_by_pattern(scalescope) -> None:
    (scalescope.folder / "other.py").write_text(
        "import time\nfor k in range(20):\n    time.sleep(0.02)\n"
        "    print(f'iteration {k} took {0.5 if k < 3 else 0.02} s, 1,600.5 images/s', flush=True)\n"
    )
    pattern = r"took (?P<step_s>[\d.]+) s, (?P<examples_per_s>[\d.,]+) images"
    words = ("--np", "1", "--launcher", "own", "--pattern", pattern, "--json")
    done = scalescope("measure", *words, "--", sys.executable, "other.py")
    (point,) = document(done)["points"]
    assert (point["source"], point["step_s"], point["warmup_steps"]) == ("pattern", 0.02, 3)
    assert point["throughput"] == pytest.approx(1600.5)
    assert sum(point["phases"].values()) == pytest.approx(point["wall_s"], rel=0.02)


def test_steps_are_as_long_as_the_time_between_their_lines(scalescope) -> None:
    (scalescope.folder / "paced.py").write_text(
        "import sys, time\nfor _ in range(10):\n"
        "    time.sleep(int(sys.argv[1]) / 100)\n    print('step done at', time.monotonic())\n"
    )
    words = ("--np", "1", "--launcher", "own", "--batch", "15,30,40", "--pattern", "step done", "-o", "out", "--json")
    done = scalescope("measure", *words, "--", sys.executable, "paced.py", "{batch}")
    points = document(done)["points"]
    assert [point["batch"] for point in points] == [15, 30, 40]
    for point in points:
        (output,) = scalescope.folder.glob(f"out/launches/*-b{point['batch']}/launcher.out")
        printed = [float(line.split()[-1]) for line in output.read_text().splitlines()]
        assert point["step_s"] == pytest.approx(median(b - a for a, b in pairwise(printed)), rel=0.1)


CLOCK_SET_BACK = """
import itertools, time
real, jumps = time.time_ns, itertools.count()
time.time_ns = lambda: real() - 3600 * 10**9 * next(jumps)
from scalescope.cli import main; main()
"""


def test_a_clock_that_is_set_back_and_cores_that_ranks_share(scalescope) -> None:
    script = "import time\nfor _ in range(8): time.sleep(0.02); print('step')"
    words = ("--np", "2", "--oversubscribe", "--launches", "1", "--launcher", "own", "--pattern", "step", "--json")
    command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), sys.executable, "-c", CLOCK_SET_BACK]
    command += ["measure", *words, "--", sys.executable, "-c", script]
    done = subprocess.run(command, cwd=scalescope.folder, capture_output=True, text=True, check=True)
    (point,) = document(done)["points"]
    assert 0.16 <= point["wall_s"] < 600
    assert all(seconds >= 0 for seconds in point["phases"].values())
    assert sum(point["phases"].values()) == pytest.approx(point["wall_s"])
    assert point["threads_per_rank"] == 1
    assert "2 ranks share 1 physical core" in " ".join(point["warnings"])


def test_a_checkpoint_that_the_next_launch_reads_is_a_warning(scalescope) -> None:
    (scalescope.folder / "resumes.py").write_text(
        "import os, torch\nmodel = torch.nn.Linear(4, 4); o = torch.optim.SGD(model.parameters(), lr=1)\n"
        "if os.path.exists('last.pt'): model.load_state_dict(torch.load('last.pt'))\n"
        "open(__file__).read()\n"
        "for _ in range(6): model(torch.ones(2, 4)).sum().backward(); o.step()\n"
        "torch.save(model.state_dict(), 'last.pt')\n"
    )
    words = ("--np", "1", "--launcher", "own", "--batch", "2,4", "--json")
    done = scalescope("measure", *words, "--", sys.executable, "resumes.py", "{batch}")
    warned = [warning for point in document(done)["points"] for warning in point["warnings"]]
    assert sum("last.pt, which an earlier launch changed" in warning for warning in warned) == 1
    assert "{launch}" in done.stderr


def test_dry_run_prints_what_would_run_and_starts_nothing(scalescope) -> None:
    done = scalescope("measure", "mlp", "--np", "1,2", "--dry-run", "-o", "out")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    assert all("torch.distributed.run" in line and "OMP_NUM_THREADS=" in line for line in lines)
    assert len({re.search(r"OMP_NUM_THREADS=(\d+)", line)[1] for line in lines}) == 1
    assert not (scalescope.folder / "out").exists()
