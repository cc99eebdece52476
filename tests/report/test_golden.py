"""Everything that users and their scripts read: help, options, terminal and JSON, each compared with a kept file.

`make goldens` writes the files anew; the commit that does so says why the words or keys changed.
"""

import io
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_explanation
import made_predictions
import made_scalings
import made_tunings
import pytest
import typer

from command_line import CommandLine
from scalescope.cli import VERBS, application
from scalescope.report.machine import show as show_cluster
from scalescope.report.measurement import points_document as scaling_document
from scalescope.report.measurement import sentence as scaling_sentence
from scalescope.report.prediction import sentence as prediction_sentence
from scalescope.report.prediction_show import show as show_prediction
from scalescope.report.prediction_tables import as_document as prediction_document
from scalescope.report.scaling import show as show_scaling
from scalescope.report.terminal import open_console
from scalescope.report.tuning import sentence as tuning_sentence
from scalescope.report.tuning_show import as_document as tuning_document
from scalescope.report.tuning_show import show as show_tuning
from scalescope.show import document_of, terminal

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "golden"
WRITE = os.environ.get("SCALESCOPE_GOLDENS") == "write"
WIDTH = 100
SCREEN = 20  # Lines that an answer takes at most


def compare(name: str, text: str) -> None:
    """The text is what the kept file says; with SCALESCOPE_GOLDENS=write it is kept."""
    path = KEPT / name
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert text == path.read_text(), f"{name} changed: see the difference, then run 'make goldens' and say why"


def as_json(document: Any) -> str:
    """One key or value per line, numbers to four digits: the last ones differ between processors."""
    return json.dumps(_rounded(document), indent=1, sort_keys=True) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) and math.isfinite(value) else value


@pytest.mark.parametrize("verb", ["", *(verb.__name__ for verb in VERBS)])
def test_help(verb: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    done = CommandLine(ROOT).in_this_process(*filter(None, [verb]), "--help")
    compare(f"help/{verb or 'scalescope'}.txt", done.stdout)


def test_no_option_goes_without_a_word() -> None:
    """Each stays, or the CHANGELOG names its replacement."""
    verbs = typer.main.get_command(application()).commands
    lines = [
        f"{name} {' '.join([*parameter.opts, *parameter.secondary_opts])}"
        for name, verb in sorted(verbs.items())
        for parameter in verb.params
    ]
    compare("options.txt", "\n".join(sorted(lines)) + "\n")


def show_document(record: Any, console: Any, *, details: bool) -> None:
    terminal.show(document_of(record), console, details=details)


def json_of(record: Any) -> Any:
    return document_of(record).json()


RECORDS: dict[str, tuple[Callable[[], Any], Callable[..., None], Callable[[Any], str], Callable[[Any], Any]]] = {
    **{
        f"measure/{name}": (make, show_scaling, scaling_sentence, scaling_document)
        for name, make in {
            "lab11": made_scalings.lab11,
            "measured": made_scalings.measured,
            "ranges": made_scalings.ranges,
            "nearly_nothing": made_scalings.nearly_nothing,
        }.items()
    },
    **{
        f"estimate/{name}": (make, show_prediction, prediction_sentence, prediction_document)
        for name, make in {
            "predicted": made_predictions.predicted,
            "both": made_predictions.both,
            "checked": made_predictions.checked,
            "hopeless": made_predictions.hopeless,
            "too_large": made_predictions.too_large,
            "single": made_predictions.single,
        }.items()
    },
    **{
        f"explain/{name}": (make, show_document, lambda record: document_of(record).answer, json_of)
        for name, make in {
            "ddp": made_explanation.ddp,
            "bare_horovod": made_explanation.bare_horovod,
            "compared": made_explanation.compared,
            "nasty": made_explanation.nasty,
            "without_steps": made_explanation.without_steps,
        }.items()
    },
    **{
        f"tune/{name}": (make, show_tuning, tuning_sentence, tuning_document)
        for name, make in made_tunings.ALL.items()
        if name != "many_knobs"  # long, and of no other kind than the rest
    },
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_shown_and_documented(name: str) -> None:
    make, show, sentence, as_document = RECORDS[name]
    record = make()
    short = f"{sentence(record)}\n{shown(show, record)}"
    compare(f"{name}.txt", short)
    assert len(short.splitlines()) <= SCREEN
    compare(f"{name}.details.txt", shown(show, record, details=True))
    compare(f"{name}.json", as_json(as_document(record)))


def shown(show: Callable[..., None], record: Any, *, details: bool = False) -> str:
    console = open_console(file=io.StringIO(), width=WIDTH)
    show(record, console, details=details)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_cluster_is_shown() -> None:
    compare("probe/cluster.txt", shown(show_cluster, made_predictions.cluster()))
    compare("probe/cluster.details.txt", shown(show_cluster, made_predictions.cluster(), details=True))


FILES = {
    "lab11": ["examples/data/lab11.csv"],
    "logs": [f"examples/data/cifar10-{name}.log" for name in ("1gpu", "2gpus", "4gpus")],
    "autotune": ["tests/data/autotune/mpi_switches_held.csv"],
    "horovod": ["tests/data/traces/horovod/mpi_cnn.json.gz"],
    "horovod_uncached": ["tests/data/traces/horovod/gloo_nocache.json.gz"],
    "horovod_killed": ["tests/data/traces/horovod/gloo_killed.json.gz"],
    "gloo": ["tests/data/traces/kineto/gloo_small"],
    "nccl": ["tests/data/traces/kineto/nccl"],
    "cuda": ["tests/data/traces/kineto/cuda_gloo"],
    "compiled": ["tests/data/traces/kineto/cuda_compiled"],
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_explained(name: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    shell = CommandLine(ROOT)
    compare(f"files/{name}.txt", shell.in_this_process("explain", *FILES[name]).stdout)
    compare(f"files/{name}.json", as_json(json.loads(shell.in_this_process("explain", *FILES[name], "--json").stdout)))
