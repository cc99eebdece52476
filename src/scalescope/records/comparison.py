"""Changes between two results, with intervals."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.store import Record

TOLERANCE = 0.05  # A change within this fraction is none, unless another one is asked for
# Of B against A. undecided: the interval allows more than one of the others, or there is none.
Verdict = Literal["faster", "slower", "same", "undecided"]


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Time of B over time of A: above 1, B takes longer; low and high are an interval, or the value without one."""

    value: float
    low: float
    high: float


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One time in both results."""

    what: str
    a: float  # Seconds
    b: float
    ratio: Ratio | None  # None: A's is 0
    verdict: Verdict
    is_part: bool = False  # Of the step before it, which decides: parts tell where a change comes from
    note: str = ""  # Why nothing is decided


class Comparison(Record, frozen=True, kw_only=True, tag="comparison"):
    """Two results side by side."""

    current_version: ClassVar[int] = 1

    a: str  # Names of the results
    b: str
    tolerance: float  # 0.05: a change within 5 % is none
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()

    @property
    def decisive(self) -> tuple[Pair, ...]:
        """Pairs that are whole steps, or whatever the results measure."""
        return tuple(pair for pair in self.pairs if not pair.is_part)

    @property
    def slower(self) -> bool:
        """True if anything in B takes longer than the tolerance allows."""
        return any(pair.verdict == "slower" for pair in self.decisive)
