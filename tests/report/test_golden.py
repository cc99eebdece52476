"""Terminal and JSON of records that no command shows again: a search, a corrected map, a probed cluster.

All that commands can show is kept by tests/cli/test_golden_commands.py; `make goldens` writes both anew.
"""

from collections.abc import Callable
from typing import Any

import made_explanation
import made_predictions
import made_tunings
import pytest
from rendered import shown

from goldens import WIDTH, as_json, compare
from scalescope.show import document_of

SCREEN = 20  # Lines that an answer takes at most

RECORDS: dict[str, Callable[[], Any]] = {
    "estimate/checked": made_predictions.checked,
    "estimate/hopeless": made_predictions.hopeless,
    "estimate/too_large": made_predictions.too_large,
    "explain/bare_horovod": made_explanation.bare_horovod,
    "explain/compared": made_explanation.compared,
    "explain/nasty": made_explanation.nasty,
    "explain/without_steps": made_explanation.without_steps,
    # One is long, and of no other kind than the rest
    **{f"tune/{name}": make for name, make in made_tunings.ALL.items() if name != "many_knobs"},
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_shown_and_documented(name: str) -> None:
    record = RECORDS[name]()
    document = document_of(record)
    short = f"{document.answer}\n{shown(record, WIDTH, details=False)}"
    compare(f"{name}.txt", short)
    assert len(short.splitlines()) <= SCREEN
    compare(f"{name}.details.txt", shown(record, WIDTH))
    compare(f"{name}.json", as_json(document.json()))


def test_a_cluster_is_shown() -> None:
    compare("probe/cluster.txt", shown(made_predictions.cluster(), WIDTH, details=False))
    compare("probe/cluster.details.txt", shown(made_predictions.cluster(), WIDTH))
