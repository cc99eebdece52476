"""What the sections of a page say below their headings: sentences, facts and tables of each kind of record."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scalescope.records.explanation import Explanation, Finding
from scalescope.records.results import Results
from scalescope.report.explanation import (
    accounting_columns,
    by_gain,
    loss_words,
    saved_words,
    straggler_words,
)
from scalescope.report.explanation import sentence as where_time_goes
from scalescope.report.explanation_horovod import horovod_lines, tensor_rows
from scalescope.report.explanation_show import epoch_rows, over_time_lines, rank_lines, steps_words
from scalescope.report.measurement import sentence as how_fast
from scalescope.report.phrases import ENGINE_TITLES
from scalescope.report.prediction import sentence
from scalescope.report.prediction_show import check_rows, prediction_lines
from scalescope.report.scaling import curve_lines, told_curve
from scalescope.report.study import with_measured
from scalescope.report.study_parts import check_words
from scalescope.report.tables import Table, page_tables
from scalescope.report.tuning import cost_lines
from scalescope.report.tuning import sentence as what_to_use
from scalescope.report.tuning_show import confirmation_lines, sample_rows, space_lines
from scalescope.text import plain


class Shown(NamedTuple):
    """A finding for people."""

    sentence: str
    gain: str
    change: str
    evidence: Sequence[tuple[str, str]]


def of_prediction(results: Results) -> dict[str, Any]:
    """The map in words, and every cell that was run, predicted and measured."""
    if results.prediction is None:
        return {}
    checked = with_measured(results.prediction, results.scaling)
    rows = check_rows(checked) if checked.checks else []
    tables = [Table("Predicted and measured steps", rows[0], rows[1:])] if rows else []
    facts = [*prediction_lines(results.prediction)[1:], *results.prediction.warnings]
    return {"lines": [sentence(results.prediction)], "facts": facts_of(facts), "tables": tables}


def facts_of(lines: Sequence[str]) -> list[str]:
    """Each once, with a capital letter where it begins with a word."""
    return [_as_sentence(line) for line in dict.fromkeys(plain(each, 600) for each in lines if each)]


def _as_sentence(line: str) -> str:
    first = line.split()[0].strip(":,;")
    if first in ENGINE_TITLES:
        return ENGINE_TITLES[first] + line[len(first) :]
    return line[0].upper() + line[1:] if first.isalpha() else line


def of_scaling(results: Results) -> dict[str, Any]:
    """The fastest point, which speedup to trust, and the curves as tables."""
    if results.scaling is None:
        return {}
    scaling = results.scaling
    curve = told_curve(scaling)
    facts = [*scaling.trust, *scaling.findings, *(curve_lines(curve)[1:] if curve else []), *scaling.warnings]
    return {"lines": [plain(how_fast(scaling), 600)], "facts": facts_of(facts), "tables": page_tables(scaling)}


def of_traces(explanations: Sequence[Explanation]) -> dict[str, Any]:
    """Where the steps of every traced launch go, rank by rank."""
    facts: list[str] = []
    tables: list[Table] = []
    for each in explanations:
        told = f"{each.kind}: {plain(each.what, 60)}: {steps_words(each)}"
        facts += [told, straggler_words(each), *over_time_lines(each), *rank_lines(each), *horovod_lines(each)]
        facts += [loss_words(each), *each.notes]
        if each.accounting:
            rows = [(f"rank {account.rank}", account.parts, account) for account in each.per_rank[:64]]
            columns = accounting_columns([("all", each.accounting, None), *rows])
            tables.append(Table(f"The typical step: {told}", list(columns), _rows(columns)))
        for caption, cells in (("Tensors that take longest", tensor_rows(each)), ("Epochs", epoch_rows(each))):
            if cells:
                tables.append(Table(caption, cells[0], [row for row in cells[1:] if len(row) == len(cells[0])]))
    return {"lines": [where_time_goes(each) for each in explanations], "facts": facts_of(facts), "tables": tables}


def _rows(columns: Mapping[str, Sequence[str]]) -> list[list[str]]:
    return [list(cells) for cells in zip(*columns.values(), strict=True)]


def shown_findings(explanations: Sequence[Explanation]) -> list[Shown]:
    """Of all traced launches, one of a kind once."""
    steps_s = {id(finding): each.step_s for each in explanations for finding in each.findings}
    found: dict[str, Finding] = {}
    for finding in by_gain([finding for each in explanations for finding in each.findings]):
        found.setdefault(finding.id, finding)
    return [
        Shown(
            plain(finding.sentence, 300),
            saved_words(finding, steps_s[id(finding)]),
            plain(finding.change, 300),
            [(plain(name, 60), plain(value, 200)) for name, value in finding.evidence.items()],
        )
        for finding in found.values()
    ]


def of_tuning(results: Results) -> dict[str, Any]:
    """What to use, how that was decided, every sample, and lines to paste."""
    tuning = results.tuning
    if tuning is None:
        return {}
    rows = sample_rows(tuning)
    tables = [Table("Samples", rows[0], [row for row in rows[1:] if len(row) == len(rows[0])])] if rows else []
    facts = [check_words(results), *confirmation_lines(tuning), *cost_lines(tuning), *space_lines(tuning)]
    code = list(results.settings)
    return {"lines": [what_to_use(tuning)], "facts": facts_of(facts), "tables": tables, "code": code}
