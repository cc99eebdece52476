"""Terminal and JSON of records that no command shows again: a search, a corrected map, a probed cluster.

All that commands can show is kept by tests/cli/test_golden_commands.py; `make goldens` writes both anew.
"""

import io
from collections.abc import Callable
from typing import Any

import made_explanation
import made_predictions
import made_tunings
import pytest
from scalescope.report.machine import show as show_cluster
from scalescope.report.prediction import sentence as prediction_sentence
from scalescope.report.prediction_show import show as show_prediction
from scalescope.report.prediction_tables import as_document as prediction_document

from goldens import WIDTH, as_json, compare
from scalescope.report.explanation import sentence as explanation_sentence
from scalescope.report.explanation_show import show as show_explanation
from scalescope.report.explanation_tables import as_document as explanation_document
from scalescope.report.terminal import open_console
from scalescope.show import document_of, terminal

SCREEN = 20  # Lines that an answer takes at most

RECORDS: dict[str, tuple[Callable[[], Any], Callable[..., None], Callable[[Any], str], Callable[[Any], Any]]] = {
    **{
        f"estimate/{name}": (make, show_prediction, prediction_sentence, prediction_document)
        for name, make in {
            "checked": made_predictions.checked,
            "hopeless": made_predictions.hopeless,
            "too_large": made_predictions.too_large,
        }.items()
    },
    **{
        f"explain/{name}": (make, show_explanation, explanation_sentence, explanation_document)
        for name, make in {
            "bare_horovod": made_explanation.bare_horovod,
            "compared": made_explanation.compared,
            "nasty": made_explanation.nasty,
            "without_steps": made_explanation.without_steps,
        }.items()
    },
    **{
        f"tune/{name}": (
            lambda make=make: document_of(make()),
            terminal.show,
            lambda told: told.answer,
            lambda told: told.json(),
        )
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
