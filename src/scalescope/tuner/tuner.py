"""The course of a search: the default, settings from which most is expected, then the best against the default."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from scalescope.records.tuning import Decision, Phase, Sample, Values
from scalescope.tuner.blocks import Block, Outcome, SampleRequest, Score, score, typical_batch
from scalescope.tuner.confirmation import WORTH_HAVING, Confirmation
from scalescope.tuner.search import Observation, Options, Posterior, Surrogate, with_noise
from scalescope.tuner.space import Space

_WORTH_A_SAMPLE = 0.005  # Of a sample's noise: what has to be expected of a further one
_LEAST_WORTH = 0.0002
# A setting is compared with the default unless a gain worth having is this many standard deviations above its
# expected gain.
_OPTIMISM_SD = 1.3
_ALIKE = 1.0  # Standard deviations within which another setting is raced with the best one


class Tuner:
    """Says what to measure next, takes what was measured, and decides."""

    def __init__(
        self, space: Space, predicted: Sequence[float] | None, options: Options, finalist: Values | None = None
    ) -> None:
        """`finalist`: a setting of the space that was found elsewhere and is compared without a search."""
        self._space, self._predicted, self._options = space, predicted, options
        self._surrogate = Surrogate(space, predicted)
        self._count = 0
        self._batch: float | None = None
        self._observed: list[Observation] = []
        self._barred: set[int] = set()  # Failed or cut: never tried again
        # Settings, with their pairs, whose last block was too short; twice is enough.
        self._weak: list[tuple[int, int | None]] = []
        self._again: tuple[int, Phase, int | None] | None = None
        self._confirmation = Confirmation(options.most_pairs)
        if finalist:
            self._confirmation.race([space.settings.index(finalist)])
        self._searching = not finalist
        self._confirm_steps = options.confirm_steps
        self._steps = 0  # Of the search, with what was not measured
        self._reason = ""
        self._decision: Decision = "keep_default"
        self._known: Posterior | None = None

    @property
    def default_step_s(self) -> float | None:
        """Typical step over all samples of the default."""
        return self._step_s(0)

    @property
    def best(self) -> tuple[Values, float]:
        """The best setting so far and how many times faster than the default it is thought to be."""
        if not self._observed:
            return {}, 1.0
        leader = self._confirmation.leader
        if leader is not None:  # the surface says nothing more, and costs the training's cores time
            return self._space.settings[leader], math.exp(fmean(self._confirmation.ratios or [0.0]))
        setting = self._best()
        return self._space.settings[setting], math.exp(self._gain(setting))

    def next(self) -> SampleRequest | None:
        """The next sample; None: it is decided."""
        return next(iter(self.plan()), None)

    def plan(self) -> list[SampleRequest]:
        """The samples that are wanted whatever the first of them show: in the comparison, all until the next look."""
        if self._reason:
            return []
        if self._again:
            return [self._request(*self._again)]
        wanted = min(self._options.default_samples, (self._options.max_samples + 1) // 2) if self._searching else 1
        if sum(each.setting == 0 for each in self._observed) < wanted:
            return [self._request(0, "default", None)]
        if self._searching:
            setting = self._worth_a_sample()
            if setting is not None:
                return [self._request(setting, "search", None)]
            self._end_search()
        if self._confirmation.leader is None:
            return []
        blocks = self._confirmation.upcoming()
        return [self._request(setting, "confirm", at, ahead) for ahead, (at, setting) in enumerate(blocks)]

    def end_search(self) -> None:
        """End the search: the best settings so far are compared with the default."""
        if self._searching and not self._reason and self._observed:
            self._end_search()

    def stop(self, why: str) -> None:
        """End where nothing more can be measured: a comparison that is open stays undecided."""
        if not self._reason:
            self._decision, self._reason = "undecided", self._so_far(why)

    def resume(self) -> None:
        """Compare further where it was not decided."""
        if self._decision == "undecided":
            self._decision, self._reason = "keep_default", ""
            if len(self._confirmation.ratios) >= self._confirmation.most:
                self._confirmation.resume()

    def tell(self, request: SampleRequest, block: Block) -> Sample:
        """Take a measured sample."""
        setting = self._space.settings.index(request.values)
        self._count = max(self._count, request.index + 1)
        self._again, self._known = None, None
        if request.phase != "confirm":
            self._steps += (len(block.step_s) if block.steps is None else block.steps) + block.discarded + block.waited
        if request.phase == "default" and self._batch is None:
            self._batch = typical_batch(block.samples)
        problem, scored = block.problem, None
        if not problem:
            if block.step_s and (block.cut or len(block.step_s) >= min(self._options.fewest_times, request.steps)):
                scored = score(block, self._batch, self._options.least_error)
            else:
                problem = f"only {len(block.step_s)} of {request.steps} steps could be measured"
        return Sample(
            index=request.index,
            phase=request.phase,
            pair=request.pair,
            values=request.values,
            predicted_s=request.predicted_s,
            step_s=scored.step_s if scored else None,
            error_s=scored.error_s if scored else None,
            steps=len(block.step_s) if block.steps is None else block.steps,
            other_steps=block.discarded + block.waited,
            seconds=block.seconds,
            switch_s=block.switch_s,
            cut=block.cut,
            problem=problem,
            decision=self._take(setting, request, scored, block, problem),
        )

    def fix(self, knob: str) -> None:
        """Never again try a setting that changes this knob."""
        self._barred |= {index for index, values in enumerate(self._space.settings) if knob in values}

    def restore(self, samples: Sequence[Sample]) -> None:
        """Take up the samples of an interrupted search; what its space does not hold any more is passed over."""
        for sample in samples:
            self._count = max(self._count, sample.index + 1)
            if sample.values not in self._space.settings:
                continue
            setting = self._space.settings.index(sample.values)
            if sample.step_s is None:
                if setting:
                    self._barred.add(setting)
                continue
            self._observe(setting, Score(sample.step_s, sample.error_s or 0.0))
            if sample.cut:
                self._barred.add(setting)
            else:
                self._barred.discard(setting)
            if sample.phase == "confirm" and sample.pair is not None:
                if len(self._confirmation.ratios) >= self._confirmation.most:  # it was resumed before
                    self._confirmation.resume()
                self._confirmation.add(sample.pair, setting, sample.step_s)
                self._confirm_steps = sample.steps or self._confirm_steps
            else:
                self._steps += sample.steps + sample.other_steps
        self._searching = self._confirmation.leader is None
        self._known = None
        self._judge()

    def outcome(self) -> Outcome:
        """The decision; before there is one, that the default is kept for the time being."""
        leader = self._confirmation.leader
        finalist = self._space.settings[leader] if leader is not None else {}
        wins = self._decision == "use"
        return Outcome(
            decision=self._decision,
            values=finalist if wins else {},
            finalist=finalist,
            gain=self._confirmation.gain,
            more=self._confirmation.more if self._decision == "undecided" else None,
            reason=self._reason or "it is not decided yet",
            cells=self._surrogate.cells(self._posterior() if self._observed else None),
            default_step_s=self.default_step_s,
            winner_step_s=self._step_s(leader) if wins and leader is not None else None,
        )

    def _request(self, setting: int, phase: Phase, pair: int | None, ahead: int = 0) -> SampleRequest:
        default_s = self.default_step_s
        limited = phase == "search" and setting and default_s and self._options.check
        return SampleRequest(
            index=self._count + ahead,
            phase=phase,
            pair=pair,
            values=self._space.settings[setting],
            steps=self._confirm_steps if phase == "confirm" else self._options.steps_per_sample,
            limit_s=self._options.worst * default_s if limited and default_s else None,
            predicted_s=self._predicted[setting] if self._predicted else None,
        )

    def _take(self, setting: int, request: SampleRequest, scored: Score | None, block: Block, problem: str) -> str:
        """Learn from a sample; returns what follows from it in a few words."""
        if scored is None:
            return self._take_problem(setting, request, block, problem)
        self._observe(setting, scored)
        if block.cut:
            self._barred.add(setting)
            default_s = self.default_step_s or scored.step_s
            return f"cut after {len(block.step_s)} steps: {scored.step_s / default_s:.2g}x the default's step"
        if request.phase == "confirm" and request.pair is not None:
            block_number = self._confirmation.add(request.pair, setting, scored.step_s)
            self._judge()
            return f"block {block_number} of the confirmation"
        if setting == 0:
            return "the default" if request.phase == "default" else "the default again"
        best = self._best()
        return f"best so far: {math.exp(self._gain(best)):.2f}x" if best == setting else "no better"

    def _take_problem(self, setting: int, request: SampleRequest, block: Block, problem: str) -> str:
        """A failed setting is never tried again; a block that was only too short is, once."""
        place = setting, request.pair
        if not block.problem and place not in self._weak:
            self._weak.append(place)
            self._again = setting, request.phase, request.pair
            return "too short: once more"
        if request.pair is not None and not block.problem:
            self._confirmation.lose(request.pair)
            self._judge()
            return "too short again: this pair does not count"
        if setting == 0:
            self._reason = f"the default could not be measured: {problem}"
        elif request.phase == "confirm":
            self._reason = f"the best setting failed in the comparison with the default: {problem}"
        self._barred.add(setting)
        return "failed: not tried again"

    def _observe(self, setting: int, scored: Score) -> None:
        relative = self._options.gp_noise or max(scored.error_s / scored.step_s, 1e-4)
        self._observed.append(Observation(setting, math.log(scored.step_s), relative**2))

    def _posterior(self) -> Posterior:
        if self._known is None:
            self._known = self._surrogate.posterior(self._with_noise())
        return self._known

    def _with_noise(self) -> list[Observation]:
        return self._observed if self._options.gp_noise else with_noise(self._observed)

    def _best(self) -> int:
        """Best setting by the posterior, never by a single sample."""
        mean = self._posterior().mean
        standing = {0} | {each.setting for each in self._observed} - self._barred
        return min(standing, key=lambda setting: (float(mean[setting]), setting))

    def _gain(self, setting: int) -> float:
        mean = self._posterior().mean
        return float(mean[0] - mean[setting])

    def _worth_a_sample(self) -> int | None:
        """The setting to try next; None: no more samples, or none from which more than noise is expected."""
        if self._count >= self._options.max_samples or len(self._space.settings) < 2:
            return None
        known = self._posterior()
        noise = math.sqrt(median(each.variance for each in self._with_noise()))
        limit = float(known.mean[0]) + math.log(self._options.worst)
        choice = self._surrogate.choose(known, [each.setting for each in self._observed], self._barred, noise, limit)
        worth = max(_WORTH_A_SAMPLE * noise, _LEAST_WORTH)
        return choice.setting if choice and choice.gain > worth else None

    def _end_search(self) -> None:
        """Compare the best settings that were tried with the default, unless none can be expected to gain enough."""
        self._searching = False
        known = self._posterior()
        tried = {each.setting for each in self._observed} - self._barred - {0}
        best = min(tried, key=lambda setting: (float(known.mean[setting]), setting), default=0)
        if len(self._space.settings) < 2:
            self._reason = "there is nothing to search"
        elif best == 0 or self._gain(best) + _OPTIMISM_SD * float(known.apart[best]) < math.log1p(WORTH_HAVING):
            self._reason = "no setting is expected to gain more than the noise"
        else:
            near = [each for each in tried if known.mean[each] - known.mean[best] < _ALIKE * known.apart[each]]
            near.sort(key=lambda setting: (float(known.mean[setting]), setting))
            self._confirmation.race(near[: self._options.finalists])
            self._confirm_steps = self._options.pair_steps(self._steps)

    def _judge(self) -> None:
        """Decide after a block, where the comparison does."""
        so_far = self._confirmation.verdict
        if so_far == "open" or self._reason:
            return
        if so_far == "wins":
            self._decision, self._reason = "use", self._so_far("a gain of", "")
        elif so_far == "undecided":
            self._decision, self._reason = "undecided", self._so_far(self._confirmation.why_undecided)
        else:
            self._decision, self._reason = "keep_default", self._so_far("no significant gain")

    def _so_far(self, why: str, template: str = "({})") -> str:
        gain = self._confirmation.gain
        return f"{why} {template.format(gain.words) or gain.words}" if gain else why

    def _step_s(self, setting: int) -> float | None:
        times = [each.log_s for each in self._observed if each.setting == setting]
        return math.exp(fmean(times)) if times else None
