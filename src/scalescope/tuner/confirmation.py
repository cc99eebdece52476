"""Compares finalists with the default, pair by pair: one wins only if an interval and the typical pair say so.

The order within a pair is random, so that neither drifts nor what happens every N steps favour a side, and pairs count
as independent although steps resemble the ones before.
"""

import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Literal, NamedTuple

from scalescope.records.tuning import Gain
from scalescope.stats import CONFIRMED, GIVE_UP, LOOKS, look_width, t_width

WORTH_HAVING = 0.01  # A gain that is below this for sure ends the comparison
WORTH_MORE = 0.03  # After the last pair: a gain of this much that is still possible leaves it undecided
_DETECTED = (0.1, 0.05, WORTH_MORE)  # Gains that more pairs would detect, the coarsest first
# Of an estimate that is z standard errors above zero, this over z squared is taken off: early stopping overstates
# gains, so they are shrunk. Chosen so that at a pair deviation of 10 % gains of 5 and 13 % are reported without bias.
_SHRINK = 2.0
_TYPICAL = 0.5  # Of the mean gain, what the typical pair must show
_RACE = 5  # Rounds after which one of several finalists continues alone
_BEHIND = 1.0  # Standard errors behind the leader at which another finalist is left out, at a look

Verdict = Literal["wins", "gains nothing", "undecided", "open"]


class Lead(NamedTuple):
    """Lead of one setting over the default, in logarithms over some pairs."""

    mean: float
    error: float  # Standard error
    width: float  # Standard errors on each side, for all looks together
    typical: float  # The middle pair

    @classmethod
    def over(cls, ratios: Sequence[float], most: int, rivals: int = 1, resumed: int = 0) -> "Lead":
        """`ratios`: logarithm of the default's step over the finalist's, one per pair, of at most `most`."""
        mean, count = fmean(ratios), len(ratios)
        error = math.sqrt(fmean((ratio - mean) ** 2 for ratio in ratios) / (count - 1))
        return cls(mean, error, look_width(count, most, rivals, resumed), median(ratios))

    @property
    def wins(self) -> bool:
        """True if its interval lies above zero, and not because of a few pairs alone.

        Horovod over MPI, started anew by a switch, can leave ranks on each other's cores for seconds: some blocks
        of the default take twice as long then, and a training that is never switched hardly ever sees that.
        """
        return self._is_ahead and not self.rests_on_few

    @property
    def rests_on_few(self) -> bool:
        """True if only the typical pair, which gains less than half of the mean, keeps it from winning."""
        return self._is_ahead and self.typical < _TYPICAL * self.mean

    @property
    def _is_ahead(self) -> bool:
        return self.mean > self.width * self.error

    def gain(self, pairs: int) -> Gain:
        """The gain; that of a winner is shrunk, never below the lower end of the interval."""
        low, high = (self.mean + side * self.width * self.error for side in (-1, 1))
        value = self.mean
        if self.wins and self.error > 0:
            value = max(self.mean * (1 - _SHRINK * (self.error / self.mean) ** 2), low)
        low, value, high = (math.expm1(max(min(end, 50.0), -50.0)) for end in (low, value, high))
        return Gain(value=value, low=low, high=high, pairs=pairs, level=CONFIRMED)


def verdict(ratios: Sequence[float], most: int, rivals: int = 1, resumed: int = 0) -> Verdict:
    """Judge a finalist after these pairs: it has won, has nothing to win any more, or is compared further."""
    count = len(ratios)
    is_last = count >= most
    if count < 2 or not (is_last or count in LOOKS):
        return "undecided" if is_last else "open"
    lead = Lead.over(ratios, most, rivals, resumed)
    if lead.wins:
        return "wins"
    if lead.mean + t_width(count - 1, GIVE_UP) * lead.error < math.log1p(WORTH_HAVING):
        return "gains nothing"
    if is_last:
        return "undecided" if lead.mean + lead.width * lead.error > math.log1p(WORTH_MORE) else "gains nothing"
    return "open"


class MorePairs(NamedTuple):
    """Pairs that would decide a comparison, and the gain that they would detect."""

    pairs: int
    tells: float  # The gain that they would detect


def more_pairs(ratios: Sequence[float], most: int) -> MorePairs | None:
    """Estimate the pairs that an undecided comparison still takes; None: too few pairs to estimate."""
    if len(ratios) < 2:
        return None
    deviation, width = stdev(ratios), look_width(max(most, len(ratios)), max(most, len(ratios)))
    half = width * deviation / math.sqrt(len(ratios))
    tells = next((gain for gain in _DETECTED if gain < half), WORTH_MORE)
    return MorePairs(max(math.ceil((width * deviation / math.log1p(tells)) ** 2) - len(ratios), 1), tells)


class Confirmation:
    """Rounds of blocks or launches: the default, and every finalist that is still in the race."""

    def __init__(self, most: int) -> None:
        self._most, self._resumed = most, 0
        self._rivals: list[int] = []  # Every finalist that was ever raced
        self._standing: list[int] = []
        self._rounds: dict[int, dict[int, float]] = {}  # Setting -> step time; 0 is the default
        self._lost: set[int] = set()

    @property
    def leader(self) -> int | None:
        """The finalist that is ahead; None: there is none."""
        return max(self._standing, key=lambda each: (fmean(self.ratios_of(each) or [0.0]), -each), default=None)

    @property
    def ratios(self) -> list[float]:
        """Log-ratios of the leader."""
        return self.ratios_of(self.leader) if self.leader is not None else []

    @property
    def most(self) -> int:
        """Pairs after which it ends; pairs that were lost are not made up for."""
        return self._most * (1 + self._resumed) - len(self._lost)

    @property
    def verdict(self) -> Verdict:
        """Verdict on the leader."""
        if len(self._standing) > 1:
            return "open"
        return verdict(self.ratios, self.most, max(len(self._rivals), 1), self._resumed)

    @property
    def gain(self) -> Gain | None:
        """Gain of the leader; None below two pairs."""
        return self._lead.gain(len(self.ratios)) if self._lead else None

    @property
    def why_undecided(self) -> str:
        """Reason why it is open after the last pair."""
        few = self._lead is not None and self._lead.rests_on_few
        return "all of the gain is in a few slow blocks of the default" if few else "the pairs differ too much"

    @property
    def _lead(self) -> Lead | None:
        ratios = self.ratios
        return Lead.over(ratios, self.most, max(len(self._rivals), 1), self._resumed) if len(ratios) > 1 else None

    @property
    def more(self) -> MorePairs | None:
        """Pairs that it would take to decide."""
        return more_pairs(self.ratios, self._most)

    def race(self, finalists: Sequence[int]) -> None:
        """Compare these with the default."""
        self._rivals, self._standing = list(finalists), list(finalists)

    def resume(self) -> None:
        """Allow as many pairs more as at first, after a comparison that was not decided."""
        self._resumed += 1

    def ratios_of(self, finalist: int) -> list[float]:
        """Logarithm of the default's step over the finalist's, for every round in which both were measured."""
        rounds = [each for _, each in sorted(self._rounds.items()) if 0 in each and finalist in each]
        return [math.log(each[0] / each[finalist]) for each in rounds]

    def upcoming(self) -> list[tuple[int, int]]:
        """Round and setting of every block until the next look."""
        missing: list[tuple[int, int]] = []
        done, rounds = len(self.ratios), itertools.count()
        while not missing or not (done in LOOKS or done >= self.most):
            at = next(rounds)
            sides = random.Random(at).sample([0, *self._standing], 1 + len(self._standing))
            left = [side for side in sides if side not in self._rounds.get(at, {})]
            if left and at not in self._lost:
                done += 1
                missing += [(at, side) for side in left]
        return missing

    def add(self, at: int, setting: int, step_s: float) -> int:
        """Take a block of a round; how many blocks there are now."""
        self._rounds.setdefault(at, {})[setting] = step_s
        if setting and setting not in self._rivals:  # of an earlier process
            self._rivals.append(setting)
            self._standing.append(setting)
        self._leave_behind(at)
        return sum(len(each) for each in self._rounds.values())

    def lose(self, at: int) -> None:
        """Drop a round that could not be measured."""
        self._lost.add(at)
        self._rounds.pop(at, None)

    def _leave_behind(self, at: int) -> None:
        """Drop rivals that are clearly behind the leader after a whole round, and at last all but the leader."""
        leader = self.leader
        if leader is None or len(self._standing) < 2 or not {0, *self._standing} <= set(self._rounds[at]):
            return
        rounds = len(self.ratios)
        for other in [each for each in self._standing if each != leader]:
            both = [each for each in self._rounds.values() if leader in each and other in each]
            ahead = [math.log(each[other] / each[leader]) for each in both]
            behind = rounds in LOOKS and fmean(ahead) > _BEHIND * stdev(ahead) / math.sqrt(len(ahead))
            if behind or rounds >= _RACE:
                self._standing.remove(other)
