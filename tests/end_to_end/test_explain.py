"""`scalescope explain` as users type it: tables and logs that are already there; test_measure.py has measurements."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import scalescope as package
from scalescope.records.scaling import Scaling
from scalescope.records.store import load

DATA = Path(__file__).parents[2] / "examples" / "data"
LAB11 = str(DATA / "lab11.csv")
CIFAR10 = [str(DATA / f"cifar10-{name}.log") for name in ("1gpu", "2gpus", "4gpus")]


def test_json_of_a_table_has_its_speedups_and_fit(scalescope) -> None:
    document = json.loads(scalescope.in_this_process("explain", LAB11, "--json").stdout)
    assert document["kind"] == "table"
    rounded = {name: round(values["32"], 2) for name, values in document["speedup"].items()}
    assert rounded == {"steady": 30.10, "train": 11.64, "end_to_end": 1.85}
    assert list(document["speedup"]["train"]) == ["1", "2", "4", "8", "16", "32"]
    assert round(document["fit"]["fixed_s"], 2) == 8.83
    assert round(document["fit"]["fixed_s_error"], 2) == 0.98
    assert round(document["fit"]["work"]) == 31_280
    assert round(document["fit"]["longer"]["32"]["10"], 1) == 25.8
    assert "first_epoch_excess_s" not in document
    assert [point["np"] for point in document["points"]] == [1, 2, 4, 8, 16, 32]


def test_json_of_logs_has_first_epoch_excess_and_break_even(scalescope) -> None:
    document = json.loads(scalescope.in_this_process("explain", *CIFAR10, "--json").stdout)
    assert document["kind"] == "logs"
    assert {np: round(excess, 1) for np, excess in document["first_epoch_excess_s"].items()} == {
        "1": 2.3,
        "2": 22.2,
        "4": 21.9,
    }
    assert document["break_even_epochs"] == {"2": 27, "4": 18}
    assert {np: round(value, 2) for np, value in document["speedup"]["train"].items()} == {"1": 1, "2": 0.61, "4": 0.7}
    assert document["speedup"]["end_to_end"] == {}
    assert document["fit"] is None


def test_details_and_quiet_answers_of_a_table(scalescope) -> None:
    shown = " ".join(scalescope("explain", LAB11, "--details").stdout.split())
    for words in ("30.10", "11.64", "1.85", "8.83 ± 0.98 s", "31,280 ± 416", "63 %", "the table says 1.72 at 2"):
        assert words in shown
    assert "Next: scalescope explain" in shown
    quiet = scalescope.in_this_process("explain", LAB11, "--quiet").stdout
    steady = "32 processes reach 30.10x steady, 11.64x train, 1.85x end to end, relative to 1 process"
    assert quiet == f"{steady} (one run each; runs differ).\n"


def test_the_next_command_works(scalescope) -> None:
    *_, last = scalescope.in_this_process("explain", *CIFAR10, "--np", "1,2,4").stdout.splitlines()
    words = last.removeprefix("Next: scalescope ").split()
    assert words[-2:] == ["-o", "results/explain"]
    done = scalescope(*words, pictures=True)
    folder = scalescope.folder / "results" / "explain"
    assert load(folder / "scaling.json", Scaling).source == "logs"
    assert "Tables: results/explain/scaling.csv" in done.stdout
    for name in ("scaling.csv", "scaling.md", "scaling.tex", "speedup.png", "speedup.html"):
        assert (folder / name).stat().st_size > 0


def test_what_was_written_can_be_explained_again(scalescope) -> None:
    scalescope.in_this_process("explain", LAB11, "-o", "out")
    first = json.loads(scalescope.in_this_process("explain", LAB11, "--json").stdout)
    for path in ("out/scaling.json", "out/scaling.csv", "out"):
        again = json.loads(scalescope.in_this_process("explain", path, "--json").stdout)
        for name in ("steady", "train", "end_to_end"):
            assert again["speedup"][name] == pytest.approx(first["speedup"][name], rel=1e-6)


def test_logs_with_np_and_a_pattern(scalescope) -> None:
    for name, seconds in (("one", 8), ("many", 2)):
        (scalescope.folder / f"{name}.log").write_text(f"round {seconds}\n" * 6)
    words = ("explain", "many.log", "one.log", "--np", "4,1", "--pattern", r"round (?P<epoch_s>\d+)")
    document = json.loads(scalescope.in_this_process(*words, "--json").stdout)
    assert document["speedup"]["steady"] == {"1": 1.0, "4": 4.0}
    *_, last = scalescope.in_this_process(*words).stdout.splitlines()
    assert "--np 4,1 --pattern 'round (?P<epoch_s>" in last


FILES = {
    "empty.csv": b"",
    "nothing.csv": b"a,b\n1,2\n",
    "text.csv": b"np,train_s\n1,100\n2,fast\n",
    "zero.csv": b"np,train_s\n1,0\n",
    "negative.csv": b"np,examples_per_s_total\n1,-3\n",
    "latin.csv": "np,train_s\n1,5\n2,3 µs\n".encode("latin-1"),
    "utf16.csv": "np,train_s\n1,5\n".encode("utf-16"),
    "sheet.xlsx": b"PK\x03\x04\x00\x00" + bytes(range(256)),
    "packed.log": b"\x1f\x8b\x08\x00",
    "good.csv": b"np,train_s\n1,5\n2,3\n",
    "n1.log": b"Epoch 1 took 5 s\n",
    "train.log": b"Epoch 1 took 5 s\n",
    "n2.log": b"\x1b[31mloss 0.5 at step 3\x1b[0m\n",
    "trace.json": b'{"traceEvents": []}',
    "other.json": b'{"some": "thing"}',
    "machine.json": b'{"kind": "machine", "version": 1}',
    "newer.json": b'{"kind": "measurement", "version": 99}',
    "torn.json": b'{"kind": "measurement", "version": 2',
}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name something to explain"),
        (["missing.csv"], "there is no file or folder 'missing.csv'"),
        (["."], "'trace.json' holds no events of a training"),
        (["void"], "holds no measurement.json: name one that scalescope measure wrote"),
        (["empty.csv"], "'empty.csv' is empty"),
        (["nothing.csv"], "name columns np (or gpus, ranks, workers), init_s, train_s"),
        (["text.csv"], "line 3, column 'train_s': 'fast' is no number"),
        (["zero.csv"], "line 2, column 'train_s': '0' is not possible for a training"),
        (["negative.csv"], "'-3' is not possible for a training"),
        (["latin.csv"], "line 3, column 'train_s'"),
        (["utf16.csv"], "no text in UTF-8: unpack it, convert it (iconv)"),
        (["sheet.xlsx"], "save a spreadsheet as CSV; or name traces"),
        (["packed.log"], "unpack it"),
        (["train.log"], "add --np"),
        (["n2.log"], "a line there is 'loss 0.5 at step 3': write --pattern"),
        (["n1.log", "good.csv"], "explain one kind at a time"),
        (["good.csv", "--np", "1"], "--np and --pattern go with logs"),
        (["n1.log", "--np", "1,2"], "one per log"),
        (["n1.log", "--np", "many"], "--np takes whole numbers"),
        (["n1.log", "--pattern", "("], "no regular expression"),
        (["n1.log", "--pattern", "(?P<speed>x)"], "unknown group 'speed'"),
        (["trace.json"], "holds no events of a training: name another trace"),
        (["other.json"], "JSON of another program: name traces"),
        (["machine.json"], "holds a scalescope 'machine': name"),
        (["newer.json"], "pip install --upgrade scalescope"),
        (["torn.json"], "name"),
        (["good.csv", "-o", "good.csv"], "-o names a folder"),
        (["--no-such-option"], "--no-such-option"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_one_line_and_exit_code_2(scalescope, words: list[str], says: str) -> None:
    for name, data in FILES.items():
        (scalescope.folder / name).write_bytes(data)
    (scalescope.folder / "void").mkdir()
    done = scalescope.in_this_process("explain", *words, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("scalescope: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert says in done.stderr


def test_neither_torch_nor_horovod_is_needed() -> None:
    code = "import sys; from scalescope.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "explain", LAB11], capture_output=True, text=True, check=True, cwd=DATA
    )
    assert not {"torch", "horovod"} & set(done.stderr.split())


def test_explain_of_files_from_python() -> None:
    scaling = package.explain([LAB11])
    assert scaling.source == "table"
    assert package.explain(CIFAR10, np=[1, 2, 4]).source == "logs"
