"""One run of one configuration, from whatever source: what curves are made of."""

from collections.abc import Iterable

import msgspec

from scalescope.records.run import INIT_PHASES, LAUNCH_PHASES, Run
from scalescope.records.scaling import LOSSES

PARTS = LOSSES[1:]  # What a run's time holds in addition to steady steps
TRAIN_PARTS = ("warmup", "uneven", "fixed")
END_PARTS = ("init", "launch")
ONCE_PARTS = ("warmup", "fixed")
_PER_STEP = ("uneven",)
_ROUNDING = 1e-6  # Of steady time: less is no part of its own


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds and work of one run; parts that the source cannot tell are absent."""

    engine: str
    np: int
    round: int = 1  # Observations of one round are compared with each other
    # Work per second in steady state, over all processes: over elapsed time in launches, by the median epoch in logs.
    rate: float | None
    work: float  # Done between the first step and the last
    parts: dict[str, float] = {}  # Seconds beyond steady steps, by the names in PARTS
    whole_train_s: float | None = None  # The train time, when the rate is not known and it cannot be put together
    whole_wall_s: float | None = None  # The time of the whole job, when no train time is known
    mean_rate: float | None = None  # The steady rate by mean steps
    median_rate: float | None = None  # And by median steps
    by_median: bool = False  # `rate` is that of the median epoch or step, as in logs
    nodes: int | None = None
    batch: float | None = None
    threads_per_rank: int | None = None
    step_s: float | None = None
    throughput: float | None = None
    phases: dict[str, float] = {}
    steps: int | None = None
    warmup_steps: int | None = None
    notes: tuple[str, ...] = ()

    def seconds(self, parts: Iterable[str], work: float | None = None) -> float | None:
        """Steady steps and these parts; for other `work` than was done, what happens at every step grows with it."""
        if self.rate is None:
            return None
        work = work or self.work
        grown = {name: value * work / self.work if name in _PER_STEP else value for name, value in self.parts.items()}
        return work / self.rate + sum(grown.get(part, 0.0) for part in parts)

    @property
    def knows_train(self) -> bool:
        """True where the source tells the train time."""
        return self.whole_train_s is not None or any(part in self.parts for part in TRAIN_PARTS)

    @property
    def knows_end(self) -> bool:
        """True where the source tells how long the whole job took, and what of it was the training."""
        return self.knows_train and any(part in self.parts for part in END_PARTS)

    def train_for(self, work: float) -> float | None:
        """From the first step to the last, had it done this much; without a rate the time grows with the work."""
        if self.rate is not None:
            return self.seconds(TRAIN_PARTS, work) if self.knows_train else None
        return None if self.whole_train_s is None else self.whole_train_s * work / self.work

    def wall_for(self, work: float) -> float | None:
        """From the launch to the end, had it done this much."""
        train_s = self.train_for(work)
        if train_s is None:
            return None if self.whole_wall_s is None else self.whole_wall_s * work / self.work
        return train_s + sum(self.parts.get(part, 0.0) for part in END_PARTS) if self.knows_end else None

    @property
    def train_s(self) -> float | None:
        """From the first step to the last."""
        return self.train_for(self.work)

    @property
    def wall_s(self) -> float | None:
        """From the launch to the end."""
        return self.wall_for(self.work)

    @property
    def per_work_s(self) -> float:
        """Seconds that one more unit of work takes, what uneven steps add among them."""
        return 1 / (self.rate or 1.0) + self.parts.get("uneven", 0.0) / self.work

    def once_s(self, name: str) -> float | None:
        """Seconds that are spent once, whatever the length of the run, within what this speedup counts."""
        if name == "train" or self.excess_s is None:
            return self.excess_s
        return self.excess_s + sum(self.parts.get(part, 0.0) for part in END_PARTS) if self.knows_end else None

    @property
    def excess_s(self) -> float | None:
        """Train time that is spent once, whatever the length of the run."""
        if self.rate is None or not self.knows_train:
            return None
        return sum(self.parts.get(part, 0.0) for part in ONCE_PARTS)


def observe(run: Run, *, scaling: str, samples: bool, nodes: bool, notes: tuple[str, ...] = ()) -> Observation:
    """A measured launch; its parts and steady steps add up to its wall time exactly.

    Work is counted in samples, or else in steps, of which in weak scaling every process makes its own.
    """
    steps = float(run.point.np if scaling == "weak" else 1)
    step_s, phases = run.mean_step_s, run.phases
    work_per_step = run.throughput * step_s if samples and run.throughput else steps
    between_s = phases.get("steady", 0.0) - (run.steps - run.warmup_steps) * step_s
    # Lines of output may tell steps that do not fill the time between them, and GPUs keep a clock of their own.
    uneven = {"uneven": between_s} if abs(between_s) > _ROUNDING * phases.get("steady", 0.0) else {}
    return Observation(
        engine=run.point.engine,
        np=run.point.np,
        round=run.round,
        rate=work_per_step / step_s,
        work=work_per_step * run.steps,
        parts={
            "warmup": phases.get("warmup", 0.0) - run.warmup_steps * step_s,
            **uneven,
            "fixed": phases.get("evaluation", 0.0) + phases.get("pause", 0.0),
            "init": sum(phases.get(phase, 0.0) for phase in INIT_PHASES),
            "launch": sum(phases.get(phase, 0.0) for phase in LAUNCH_PHASES),
        },
        mean_rate=work_per_step / step_s,
        median_rate=work_per_step / run.step_s,
        nodes=run.nodes if nodes else None,
        batch=run.point.batch or (run.samples_per_step / run.point.np if run.samples_per_step else None),
        threads_per_rank=run.point.threads_per_rank,
        step_s=run.step_s,
        throughput=run.throughput,
        phases=dict(phases),
        steps=run.steps,
        warmup_steps=run.warmup_steps,
        notes=notes,
    )
