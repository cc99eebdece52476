"""What a search for better knobs tried, measured and decided."""

from typing import ClassVar, Literal

import msgspec

from scalescope.records.job import Host, KnobValue
from scalescope.records.profile import WorkloadSpec
from scalescope.records.store import Record
from scalescope.records.training_name import training_name
from scalescope.text import plural
from scalescope.units import format_change

Values = dict[str, KnobValue]  # Knobs that differ from what the training does by itself; empty: the default
Phase = Literal["default", "search", "confirm"]
Decision = Literal["use", "keep_default", "undecided"]
Method = Literal["online", "offline", "native"]
_TELLS_NOTHING = 2.0  # Width of an interval, such as -100 % to +100 %


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that `scalescope tune` can be told."""

    workload: WorkloadSpec | None = None
    command: tuple[str, ...] = ()  # The user's own training, instead of a workload
    np: int = 2
    batch: int | None = None  # Per process; None: 32 for a model, as it is for a script
    engine: str = ""
    launcher: str = ""
    hosts: tuple[Host, ...] = ()
    # None: online where knobs can change while training, offline otherwise
    method: Method | None = None
    hold: tuple[str, ...] = ()  # name=value texts: knobs that stay fixed
    search: tuple[str, ...] = ()  # Knobs that are searched on request only
    start_from: Values | None = None  # A setting found earlier: used at once, without a search
    confirm: Values | None = None  # A setting found earlier: compared with the default, without a search
    # Warm-up length, in samples; None: as the method has it.
    warmup_samples: int | None = None
    steps_per_sample: int | None = None
    max_samples: int | None = None
    gp_noise: float | None = None  # Relative standard deviation of a sample; None: as measured
    autotune_noise: float | None = None  # The same as Horovod has it: a variance over that of the scores
    budget_s: float | None = None  # By relaunch: no launch begins that would end after it
    threads_per_rank: int | None = None
    env: dict[str, str] = {}
    launcher_args: tuple[str, ...] = ()
    steps: int | None = None  # Stop the training after this many steps
    device: str = "auto"
    timeout_s: float = 600.0
    ssh: str = "ssh"
    oversubscribe: bool = False
    log_file: str = ""  # CSV, one row per sample; empty: tune.csv in the folder
    folder: str = ""

    @property
    def what(self) -> str:
        """The model or the command, for people."""
        return training_name(self.workload, self.command)


class SearchedKnob(msgspec.Struct, frozen=True, kw_only=True):
    """One dimension of the search."""

    name: str
    values: tuple[KnobValue | None, ...]  # What may be tried, ascending; None: left as the training has it
    default: KnobValue | None = None  # What the training does by itself, as far as it is known
    unit: str = ""
    logarithmic: bool = False


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of the space, and what is thought of it when the search ends."""

    values: Values
    predicted_s: float | None = None  # By the simulator alone
    expected_s: float | None = None  # By simulator and samples together
    error: float | None = None  # Relative standard deviation of that


class Sample(Record, frozen=True, kw_only=True, tag="sample"):
    """One setting, measured over some steps (online) or in one launch (offline)."""

    current_version: ClassVar[int] = 1

    index: int  # 0 is the default
    phase: Phase
    pair: int | None = None  # In the confirmation: which pair of blocks it belongs to
    values: Values
    predicted_s: float | None = None
    step_s: float | None = None  # Median step; where batches vary, that of a typical batch. None: the setting failed.
    error_s: float | None = None  # Its standard error
    steps: int = 0  # That were measured
    other_steps: int = (
        0  # Steps that were not measured: discarded after the switch, or while the next setting was not known yet
    )
    seconds: float = 0.0  # All of them together, with the switch
    switch_s: float = 0.0
    cut: bool = False  # Ended early because it was clearly worse
    problem: str = ""  # Why there is no result
    decision: str = ""  # What it led to, in a few words


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Step time of the default over that of the finalist, minus 1, with its interval."""

    value: float  # Of a winner shrunk: who stops when it looks well sees too much
    low: float
    high: float
    pairs: int  # Pairs of blocks or of launches behind it
    level: float = 0.0  # How often such an interval holds the truth, over all looks together; 0: not known

    @property
    def is_told(self) -> bool:
        """Whether the interval says more than that anything is possible, which that of very few pairs does not."""
        return self.low > 0 or self.high - self.low < _TELLS_NOTHING

    @property
    def words(self) -> str:
        """`+0.8 % +- 1.5 %`, or `-6.1 % in 3 pairs, too few to tell how much`."""
        value = format_change(self.value)
        if not self.is_told:
            return f"{value} in {plural(self.pairs, 'pair')}, too few to tell how much"
        return f"{value} +- {50 * (self.high - self.low):.1f} %"


class More(msgspec.Struct, frozen=True, kw_only=True):
    """What it would take to decide."""

    pairs: int  # Further pairs of blocks or of launches
    seconds: float  # That they would take
    gain: float  # That they would tell


class TuningCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the search took from the training."""

    warmup_steps: int = 0
    search_steps: int  # With the default's own sample, and everything between samples
    confirm_steps: int
    seconds: float  # From the first step that was not warm-up to the decision; offline: of all launches
    # More than the default would have taken for the same steps; below 0: the search itself gained time. Offline, all of
    # the seconds.
    lost_s: float
    worst: float | None = None  # The slowest sample's step over the default's
    # Steps with the winner after which the loss is made good; 0: at once; None: nothing is gained.
    break_even_steps: int | None = None


class Tuning(Record, frozen=True, kw_only=True, tag="tuning"):
    """A search and its outcome."""

    current_version: ClassVar[int] = 1

    what: str
    command: tuple[str, ...] = ()
    engine: str
    np: int
    nodes: int = 1
    method: Method
    created: str
    scalescope: str
    knobs: tuple[SearchedKnob, ...]
    held: Values = {}
    left_out: dict[str, str] = {}  # Knobs that were not searched, and why
    prior: str = ""  # Where predictions come from, or why there are none
    cells: tuple[Cell, ...] = ()
    samples: tuple[Sample, ...] = ()
    default_step_s: float | None = None  # Over all its samples
    winner_step_s: float | None = None
    decision: Decision
    values: Values = {}  # Of the decision, without what was fixed; empty: the default
    finalist: Values = {}  # What was compared with the default in the end; empty: nothing did
    gain: Gain | None = None  # Of the finalist
    reason: str = ""  # Why the search ended, and for the default why it is kept
    cost: TuningCost
    more: More | None = None  # Of a comparison that is not decided
    complete: bool = True  # False: the training or the user ended it before it was decided
    notes: tuple[str, ...] = ()
