"""How results show themselves in a notebook: the words that a verb ends with, and its figures."""

import base64
from html import escape
from typing import Any

from scalescope.errors import WorkFailed

_MOST_FIGURES = 3


def as_html(record: Any) -> str | None:
    """The answer and the most telling figures, as pictures: no script runs. None for records that are no results."""
    results = _results(record)
    answer = _answer(record, results)
    if answer is None:
        return None
    parts = [f"<p><strong>{escape(answer.sentence)}</strong></p>"]
    if answer.why:
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in answer.why) + "</ul>")
    parts += [f"<p>Warning: {escape(warning)}</p>" for warning in answer.warnings]
    if answer.do:
        parts.append(f"<p>Do: <code>{escape(answer.do)}</code></p>")
    return f"<div>{''.join(parts)}{''.join(_figures(results) if results else [])}</div>"


def _results(record: Any) -> Any:
    """The record as the only result of a page; None where it is none."""
    from scalescope.records.cluster import Cluster
    from scalescope.records.results import Results
    from scalescope.studies.results import RECORDS, of_record

    if isinstance(record, Cluster):
        return Results(name=record.name, cluster=record)
    return of_record(record, "") if isinstance(record, tuple(RECORDS.values())) else None


def _answer(record: Any, results: Any) -> Any:
    from scalescope.records.comparison import Comparison
    from scalescope.report import comparison, study

    if isinstance(record, Comparison):
        return comparison.answer(record)
    return study.answer(results) if results else None


def _figures(results: Any) -> list[str]:
    from scalescope.api.reports import specs_of
    from scalescope.charts.saving import rendered

    shown = []
    for name, spec in list(specs_of(results).items())[:_MOST_FIGURES]:
        try:
            picture = base64.b64encode(rendered(dict(spec), "svg")).decode()
        except WorkFailed as problem:
            return [f"<p>No figures: {escape(str(problem))}</p>"]
        shown.append(f'<p><img alt="{escape(name)}" src="data:image/svg+xml;base64,{picture}"></p>')
    return shown
