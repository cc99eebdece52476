"""Init, train and total times of a row: what the table leaves out follows from the others, or stays unknown."""

from collections.abc import Sequence
from typing import NamedTuple

from scalescope.errors import UsageError
from scalescope.scaling.tables.rows import TableRow

_ROUNDING = 0.01
"""Of the total: times of people are rounded."""


class Times(NamedTuple):
    """Seconds of one row; None where the table cannot tell."""

    train_s: float | None = None
    init_s: float | None = None
    rest_s: float | None = None
    """Of the total, beyond init and train; None without a total."""
    only_total_s: float | None = None
    """The total, where nothing else is known."""

    @property
    def longest_s(self) -> float | None:
        """The train time, or else the total."""
        return self.train_s if self.train_s is not None else self.only_total_s


def times_of(row: TableRow, table: str) -> tuple[Times, str]:
    """The times of a row, and a sentence when its total is less than the sum of its parts."""
    train_s, init_s, total_s = row.train_s, row.init_s, row.total_s
    if train_s is None and (init_s is None or total_s is None):
        return Times(only_total_s=total_s), ""
    if total_s is None:
        return Times(train_s, init_s), ""
    if train_s is None or init_s is None:
        known_s = train_s if train_s is not None else init_s or 0.0
        left_s = total_s - known_s
        if left_s < 0 or (train_s is None and left_s == 0):
            known = "train" if train_s is not None else "init"
            raise UsageError(
                f"'{table}' line {row.line}: the total of {total_s:g} s is less than the {known} time "
                f"of {known_s:g} s: correct the row"
            )
        return Times(train_s or left_s, left_s if init_s is None else init_s, 0.0), ""
    rest_s = total_s - init_s - train_s
    if rest_s < -_ROUNDING * total_s:
        said = f"the table says {total_s:g} s in all at {row.np} where {init_s:g} + {train_s:g} is {init_s + train_s:g}"
        return Times(train_s, init_s, 0.0), said
    return Times(train_s, init_s, rest_s if rest_s > _ROUNDING * total_s else 0.0), ""


def without_partial(times: Sequence[Times]) -> list[Times]:
    """Totals of single rows are of no use where the other rows tell train times."""
    if any(each.train_s is not None for each in times):
        return [each._replace(only_total_s=None) for each in times]
    return list(times)
