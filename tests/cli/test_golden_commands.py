"""Everything that users and their scripts read, made by commands alone, so that it outlives changes of the inside.

Kept texts stand in tests/golden; paths, versions, dates and what was timed now are masked, and nothing else.
"""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from command_line import CommandLine
from goldens import ROOT, WIDTH, as_json, compare, page_text

RECORDS = ROOT / "tests" / "data" / "kept"
VERBS = ("study", "estimate", "probe", "measure", "explain", "tune", "report", "compare", "doctor")
SCREEN = 20  # Lines that an answer takes at most, files and the next command apart


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line next to examples and to a copy of kept results, all of which it reads by short names."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    shutil.copytree(RECORDS, tmp_path / "data" / "kept")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("autotune", "traces"):
        (tmp_path / "data" / name).symlink_to(ROOT / "tests" / "data" / name)
    return CommandLine(tmp_path)


def masked(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "HERE").replace(sys.executable, "PYTHON")
    text = re.sub(r"\bPATH=\S+", "PATH=...", text)
    text = re.sub(r"\bPYTHONPATH=\S+", "PYTHONPATH=...", text)
    text = text.replace(str(ROOT), "ROOT")
    return re.sub(r"(scalescope |version = \{)\d+\.\d+\.\d+\w*", r"\1VERSION", text)


def trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def written_in(folder: Path) -> str:
    """Names of all files, and the tables as they are, but for digits that differ between processors."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "lock")
    lines = list(names)
    for name in names:
        if name.endswith((".csv", ".md", ".tex")):
            text = trimmed((folder / name).read_text())
            rounded = re.sub(r"\b\d+\.\d{5,}(e-?\d+)?", lambda found: f"{float(found[0]):.4g}", text)
            lines += [f"== {name}", rounded.rstrip("\n")]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help(shell: CommandLine, verb: str) -> None:
    done = shell.in_this_process(*filter(None, [verb]), "--help")
    compare(f"help/{verb or 'scalescope'}.txt", trimmed(done.stdout))


def test_every_option_that_disappears_is_named_in_the_changelog(
    shell: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stays, or the CHANGELOG names its replacement."""
    monkeypatch.setenv("COLUMNS", "400")
    lines = []
    for verb in VERBS:
        usual = shell.in_this_process(verb, "--help").stdout
        shown = shell.in_this_process(verb, "--help-all").stdout if "--help-all" in usual else usual
        for names in re.findall(r"^│ +((?:-[-\w,]+ +)+)", shown, flags=re.MULTILINE):
            lines.append(" ".join([verb, *names.replace(",", " ").split()]) + "\n")
    compare("options.txt", "".join(sorted(lines)))


FILES = {
    "lab11": ["examples/data/lab11.csv"],
    "logs": [f"examples/data/cifar10-{name}.log" for name in ("1gpu", "2gpus", "4gpus")],
    "autotune": ["data/autotune/mpi_switches_held.csv"],
    "horovod": ["data/traces/horovod/mpi_cnn.json.gz"],
    "horovod_uncached": ["data/traces/horovod/gloo_nocache.json.gz"],
    "horovod_killed": ["data/traces/horovod/gloo_killed.json.gz"],
    "gloo": ["data/traces/kineto/gloo_small"],
    "nccl": ["data/traces/kineto/nccl"],
    "cuda": ["data/traces/kineto/cuda_gloo"],
    "compiled": ["data/traces/kineto/cuda_compiled"],
    "compared": ["data/traces/kineto/gloo_small", "--estimate", "data/kept/study/estimate"],
    "measured": ["data/kept/study/measure"],
    "both": ["data/kept/measure-both.json"],
    "ranges": ["data/kept/measure-ranges.json"],
    "nearly_nothing": ["data/kept/measure-nearly_nothing.json"],
}
DRAWN = {"autotune", "both", "compared", "horovod", "lab11"}  # A folder of each kind of source


@pytest.mark.parametrize("name", FILES)
def test_files_are_explained(shell: CommandLine, name: str) -> None:
    compare(f"files/{name}.txt", shell.in_this_process("explain", *FILES[name]).stdout)
    told = shell.in_this_process("explain", *FILES[name], "--json", "--details")
    compare(f"files/{name}.details.txt", trimmed(told.stderr))
    compare(f"files/{name}.json", as_json(json.loads(told.stdout)))


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_explained_files_leave_tables_and_pictures(shell: CommandLine, name: str) -> None:
    shown = shell.in_this_process("explain", *FILES[name], "-o", "out", "--formats", "html").stdout
    compare(f"files/{name}.written.txt", trimmed(shown) + written_in(shell.folder / "out"))
    quiet = shell.in_this_process("explain", *FILES[name], "--quiet").stdout
    assert shown.startswith(quiet)
    assert len(quiet) < len(shown)


def test_steps_are_exported_for_perfetto(shell: CommandLine) -> None:
    shell.in_this_process("explain", "data/traces/horovod/gloo_late_cached.json.gz", "--export", "steps.json")
    events = json.loads((shell.folder / "steps.json").read_text())["traceEvents"]
    compare("files/export.json", as_json({"events": len(events), "first": events[:12], "last": events[-2:]}))


MLP = "mlp --step-time 16=12.66ms,64=24.31ms,128=40.19ms"
ESTIMATES = {
    "ethernet": f"{MLP} --np 1..8 --batch 16,64,128 --cluster examples/clusters/ethernet-8x2.toml",
    "both": f"{MLP} --np 1,2,4 --batch 64,128 --scaling both --cluster examples/clusters/ethernet-8x2.toml",
    "horovod": f"{MLP} --np 1,2,4 --batch 64 --engine horovod --knob cycle_time_ms=5 "
    "--cluster examples/clusters/ethernet-8x2.toml",
    "gpus": "mlp --step-time 32=6.7ms,128=9ms --np 1,8,16 --batch 32,128 --cluster examples/clusters/gpu-16x8.toml",
    "profile": "mlp --profile data/kept/study/estimate/profile.json --cluster data/kept/study/estimate/cluster.toml "
    "--np 1,2 --batch 16,64",
    "single": "mlp --step-time 97ms --np 1 --batch 32 --cluster examples/clusters/ethernet-8x2.toml",
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_maps_are_shown_and_written(shell: CommandLine, name: str) -> None:
    words = ["estimate", *shlex.split(ESTIMATES[name])]
    shown = shell.in_this_process(*words, "-o", "out", "--formats", "html")
    compare(f"estimate/{name}.txt", masked(trimmed(shown.stdout), shell.folder))
    compare(f"estimate/{name}.written.txt", written_in(shell.folder / "out"))
    told = shell.in_this_process(*words, "-o", "again", "--formats", "html", "--json", "--details")
    compare(f"estimate/{name}.details.txt", masked(trimmed(told.stderr), shell.folder))
    compare(f"estimate/{name}.json", as_json(json.loads(told.stdout)))


REPORTS = {
    **{path.stem: [f"data/kept/{path.name}"] for path in sorted(RECORDS.glob("*.json"))},
    "begun-study": ["data/kept/begun-study"],
    "study": ["data/kept/study"],
    "folders": [f"data/kept/study/{name}" for name in ("estimate", "measure", "explain", "tune")],
    "two": ["data/kept/measure-before.json", "data/kept/measure-slower.json"],
    "table": ["examples/data/lab11.csv"],
    "timeline": ["data/traces/horovod/mpi_cnn.json.gz"],
    "autotune": ["data/autotune/mpi_switches_held.csv"],
}


@pytest.mark.parametrize("name", REPORTS)
def test_results_are_reported(shell: CommandLine, name: str) -> None:
    words = ["report", *REPORTS[name], "-o", "page.html", "--tables", "tables"]
    told = shell.in_this_process(*words, "--json")
    answer = told.stderr.split("\nPage: ")[0]
    assert len(answer.splitlines()) <= SCREEN
    compare(f"report/{name}.txt", masked(trimmed(told.stderr), shell.folder))
    compare(f"report/{name}.json", masked(as_json(json.loads(told.stdout)), shell.folder))
    page = page_text((shell.folder / "page.html").read_text())
    compare(f"report/{name}.page.txt", masked(page, shell.folder))
    if (shell.folder / "tables").is_dir():
        compare(f"report/{name}.tables.txt", masked(written_in(shell.folder / "tables"), shell.folder))


def test_figures_and_a_proposal_are_written(shell: CommandLine) -> None:
    words = ["report", "data/kept/study", "-o", "page.html", "--figures", "figures", "--proposal", "proposal.pdf"]
    shown = shell.in_this_process(*words)
    names = sorted(path.name for path in (shell.folder / "figures").iterdir())
    assert (shell.folder / "proposal.pdf").read_bytes().startswith(b"%PDF")
    compare("report/study.figures.txt", trimmed(shown.stdout) + "\n".join(["", *names, ""]))


COMPARED = {
    "slower": ("data/kept/measure-before.json", "data/kept/measure-slower.json", 3),
    "faster": ("data/kept/measure-slower.json", "data/kept/measure-before.json", 0),
    "same": ("data/kept/measure-before.json", "data/kept/measure-before.json", 0),
    "check": ("data/kept/study/check/default", "data/kept/study/check/tuned", 0),
    "tunings": ("data/kept/tune-two_hosts.json", "data/kept/tune-keep_default.json", 0),
    "timelines": ("data/traces/horovod/gloo_late_cached.json.gz", "data/traces/horovod/gloo_late_uncached.json.gz", 0),
}


@pytest.mark.parametrize("name", COMPARED)
def test_results_are_compared(shell: CommandLine, name: str) -> None:
    before, after, code = COMPARED[name]
    compare(f"compare/{name}.txt", trimmed(shell.in_this_process("compare", before, after, code=code).stdout))
    told = shell.in_this_process("compare", before, after, "--json", "--details", code=code)
    compare(f"compare/{name}.details.txt", trimmed(told.stderr))
    compare(f"compare/{name}.json", as_json(json.loads(told.stdout)))


SET = "--threads-per-rank 1 -o out --dry-run"
DRY = [
    f"measure mlp --np 1,2 --batch 8,16 --scaling both {SET}",
    f"measure mlp --np 2 --knob bucket_cap_mb=4 --trace {SET}",
    "measure --np 2 --engine ddp --launcher own --batch 8 -o out --dry-run -- sh run.sh {np} {batch}",
    f"measure --np 2 --engine ddp --env TOKEN=secret --launcher-arg=--max-restarts=0 {SET} -- PYTHON train.py",
    f"tune mlp --batch 8 --knob first_bucket_mb=2 {SET}",
    f"tune mlp --offline --max-samples 5 {SET}",
    f"tune --np 2 --engine ddp --steps 200 {SET} -- PYTHON train.py",
    f"explain mlp --np 2 --from-start {SET}",
    f"explain --np 2 --engine ddp --steps 50 {SET} -- PYTHON train.py",
    f"study mlp --np 1,2 --batch 16,64 --engine ddp --budget 2h {SET}",
    f"study --np 1,2 --engine ddp --budget 2h {SET} -- PYTHON train.py",
    "estimate mlp --np 1,2 --batch 8,16 --threads-per-rank 1 --dry-run",
    f"estimate {MLP} --np 1..8 --cluster examples/clusters/ethernet-8x2.toml --dry-run",
]


def test_dry_runs_say_what_would_be_started(shell: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for script in ("train.py", "train_horovod.py", "x.py"):
        (shell.folder / script).touch()
    shown = []
    for line in DRY:
        words = [sys.executable if word == "PYTHON" else word for word in shlex.split(line)]
        text = masked(trimmed(shell.in_this_process(*words).stdout), shell.folder)
        lines = [
            re.sub(r"( *)(\d+ min )?[\d.]+ s\b", r" TIME", line) if words[0] == "study" or "device" in line else line
            for line in text.splitlines()
        ]  # which depend on the machine
        lines = [re.sub(r"\b[\d.e-]+(?= device-hours(,| on|$)| to start$)", "H", line) for line in lines]
        shown.append("\n".join([f"$ scalescope {line}", *lines, ""]))
    assert not (shell.folder / "out").exists()
    compare("dry_run.txt", "\n".join(shown))


WRONG = [
    "",
    "mesure mlp",
    "measure",
    "measure mpl",
    "measure mlp --np 0",
    "measure mlp --np 1,x",
    "measure mlp --batch 8,4,...,2",
    "measure mlp --engine nccl",
    "measure mlp --launcher ssh",
    "measure mlp --knob bucket_cap_mb",
    "measure mlp --knob bucket_cap=4",
    "measure mlp --knob bucket_cap_mb=much",
    "measure mlp --precision 500%",
    "measure mlp --budget soon",
    "measure mlp --scaling sideways",
    "measure mlp --relative-to largest",
    "measure mlp --formats gif",
    "measure mlp --env TOKEN",
    "measure mlp --hosts a:b",
    "measure mlp --np",
    "measure mlp --no-such-option",
    "measure mlp --resume nowhere",
    "measure --resume nowhere",
    "measure mlp --",
    "measure mlp -- python3 train.py",
    "measure -- python3 no-such-file.py",
    "estimate",
    "estimate nothere.py:model",
    "estimate mlp --step-time fast",
    "estimate mlp --cluster nowhere.toml",
    "estimate mlp --profile nowhere.json",
    "estimate mlp --engine none",
    "estimate mlp --efficiency 0",
    "probe --slots 0",
    "measure python train.py",
    "probe --hosts a:1,a:1",
    "explain",
    "explain nowhere.json",
    "explain examples/train_ddp.py",
    "explain examples/clusters/cpu-4x2.toml",
    "explain data/kept/estimate-single.json",
    "explain examples/data/lab11.csv data/traces/horovod/mpi_cnn.json.gz nowhere",
    "explain examples/data/cifar10-1gpu.log --np 1,2",
    "explain examples/data/cifar10-1gpu.log --pattern (",
    "explain examples/data/lab11.csv --export out.json",
    "tune",
    "tune mlp --np 1",
    "tune mlp --method random",
    "tune mlp --offline --method online",
    "tune mlp --knob fusion_threshold_mb=2",
    "tune mlp --start-from nowhere",
    "tune --resume nowhere",
    "report",
    "report nowhere",
    "report examples/clusters",
    "report data/kept/study -o examples",
    "report data/kept/tune-horovod.json --proposal page.pdf",
    "compare data/kept/study",
    "compare data/kept/measure-before.json nowhere",
    "compare data/kept/measure-before.json data/kept/tune-horovod.json",
    "compare data/kept/measure-before.json data/kept/measure-slower.json --tolerance -1",
    "study",
    "study mlp --budget 1s",
    "study mlp --resume -o nowhere",
    "study --resume nowhere",
    "study data/kept/begun-study",
    "doctor now",
]


def test_wrong_arguments_end_with_one_line(shell: CommandLine) -> None:
    before = sorted(shell.folder.iterdir())
    shown = []
    for line in WRONG:
        done = shell.in_this_process(*shlex.split(line), code=2)
        said = f"2 {masked(done.stderr, shell.folder).strip()}".strip()
        shown.append(f"{f'$ scalescope {line}'.strip()}\n{said}\n")
    assert sorted(shell.folder.iterdir()) == before
    compare("wrong_arguments.txt", "\n".join(shown))


@pytest.mark.launches
def test_doctor_describes_every_part_of_a_machine(shell: CommandLine) -> None:
    told = shell.in_this_process("doctor", "--json")
    table = told.stderr.split("─\n", 1)[1].split("\n\n")[0]
    rows = [line.split()[0] for line in table.splitlines() if not line.startswith(" ")]
    document = json.loads(told.stdout)
    keys = [*sorted(document), "", *sorted(document["machine"])]
    compare("doctor.txt", "\n".join([*rows, "", *keys, ""]))
