"""Record of a search for better knobs: samples, decision and cost."""

from collections.abc import Mapping
from typing import Annotated as A  # noqa: N817 - every field says it
from typing import Any, ClassVar, Literal

import msgspec

from scalescope.errors import UsageError
from scalescope.options import (
    ASSIGNMENTS,
    COUNT,
    COUNTS,
    FILE,
    SECONDS,
    TEXT,
    TEXTS,
    Also,
    Kind,
    Opt,
    choice,
    count,
    number,
)
from scalescope.records.job import KnobValue
from scalescope.records.request import OneBatch, TrainingRequest
from scalescope.records.store import Record
from scalescope.text import listed, plain
from scalescope.units import format_change

Values = dict[str, KnobValue]  # Knobs that differ from what the training does by itself; empty: the default
Phase = Literal["default", "search", "confirm"]
Decision = Literal["use", "keep_default", "undecided"]
Method = Literal["online", "offline", "native"]
_TELLS_NOTHING = 2.0  # Width of an interval, such as -100 % to +100 %

_MOST_NOISE = 100  # Horovod's alpha; its own default is 0.8


def _read_one_count(value: Any, flag: str) -> int:
    counts = COUNTS.read(value, flag)
    if len(counts) > 1:
        shown = ",".join(map(str, counts))
        raise UsageError(f"{flag} takes one number of processes, not '{shown}': tune them one after another")
    return int(counts[0])


_ONE_COUNT = COUNTS._replace(read=_read_one_count, python="str | int | None")
_FOUND = Kind(lambda value, _flag: value, python="str | Path | Mapping[str, Any] | None")  # A file is read later

RAN_TO_ITS_END = (
    "tuning ran the script to its end, so what it saves at its end was written as always; "
    "{run_dir} in the command gives each launch a folder"
)  # A note of a search that would have stopped the script


class TuneRequest(TrainingRequest, frozen=True, kw_only=True):
    """Options of `scalescope tune`."""

    np: A[
        int,
        Opt(
            "Number of processes; with --hosts all their slots unless one is given.",
            _ONE_COUNT,
            metavar="N",
            always=True,
            horovodrun=("-np", "--num-proc"),
        ),
    ] = 2
    batch: OneBatch = None
    engine: A[str, Opt("ddp or horovod (default: what the script imports; ddp for a MODEL).", TEXT)] = ""
    # None: online where knobs can change while training, offline otherwise
    method: A[
        Method | None,
        Opt(
            "online: while it trains (default); offline: one launch per setting; native: Horovod's own autotune.",
            choice("online", "offline", "native"),
            group="Search",
            of_run=True,
            also=(Also("--offline", "Short for --method offline.", "offline"),),
        ),
    ] = None
    # name=value texts: knobs that stay fixed
    knobs: A[
        tuple[str, ...],
        Opt("Engine setting, fixed while tuning; repeatable.", ASSIGNMENTS, flag="--knob"),
    ] = msgspec.field(name="hold", default=())
    search: A[
        tuple[str, ...],
        Opt(
            "Also search gradient_as_bucket_view (off by default: scripts that keep references to gradients "
            "may break).",
            TEXTS,
            metavar="KNOB",
            group="Search",
            rare=True,
        ),
    ] = ()
    # A setting found earlier: used at once, without a search
    start_from: A[
        Values | None,
        Opt(
            "Train with a setting found earlier, without a search: tuned.yaml, tuning.json or their folder.",
            _FOUND,
            metavar="PATH",
            group="Search",
            of_run=True,
            place=True,
        ),
    ] = None
    # Read when the search begins: its values are in other fields then
    config_file: A[
        str,
        Opt(
            "Knobs and search options from a config file of horovodrun, or a tuned.yaml.",
            FILE,
            metavar="YAML",
            of_run=True,
            place=True,
        ),
    ] = ""
    confirm: Values | None = None  # A setting found earlier: compared with the default, without a search
    # None: as the method has it
    warmup_samples: A[
        int | None,
        Opt(
            "Warm-up length, in samples.",
            count(0),
            group="Search",
            rare=True,
            of_run=True,
            horovodrun=("--autotune-warmup-samples",),
        ),
    ] = None
    steps_per_sample: A[
        int | None,
        Opt(
            "Measured steps per setting.",
            COUNT,
            group="Search",
            of_run=True,
            horovodrun=("--autotune-steps-per-sample",),
        ),
    ] = None
    max_samples: A[
        int | None,
        Opt(
            "Maximum number of settings to try; the search stops earlier when no gain is left.",
            COUNT,
            group="Search",
            of_run=True,
            horovodrun=("--autotune-bayes-opt-max-samples",),
        ),
    ] = None
    # Relative standard deviation of a sample; None: as measured
    gp_noise: A[
        float | None,
        Opt(
            "Noise of a sample as a fraction of its step time, 0 to 1 (default: measured).",
            number(lambda value: 0 <= value <= 1, "a fraction of the step time from 0 to 1"),
            group="Search",
            rare=True,
            of_run=True,
        ),
    ] = None
    # The same as Horovod has it: a variance over that of the scores
    autotune_noise: A[
        float | None,
        Opt(
            "Noise in Horovod's units: variance of the noise over that of the scores.",
            number(lambda value: 0 < value <= _MOST_NOISE, f"a number above 0, up to {_MOST_NOISE}"),
            flag="--autotune-gaussian-process-noise",
            group="Search",
            of_run=True,
            hidden=True,
        ),
    ] = None
    # No launch begins that would end after it
    budget_s: A[
        float | None,
        Opt(
            "By relaunch: stop launching after this long (default: no limit).",
            SECONDS,
            flag="--budget",
            group="Search",
            of_run=True,
            again=True,
        ),
    ] = None
    # Empty: tune.csv in the folder
    log_file: A[
        str,
        Opt(
            "CSV with one row per sample (default: tune.csv in the results); Horovod's own with --method native.",
            FILE,
            metavar="CSV",
            group="Search",
            rare=True,
            of_run=True,
            place=True,
            horovodrun=("--autotune-log-file",),
        ),
    ] = ""


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

    value: float  # Of a winner shrunk, because early stopping overstates gains
    low: float
    high: float
    pairs: int  # Pairs of blocks or of launches behind it
    level: float = 0.0  # How often such an interval holds the truth, over all looks together; 0: not known

    @property
    def is_told(self) -> bool:
        """True if the interval says more than that anything is possible, which that of very few pairs does not."""
        return self.low > 0 or self.high - self.low < _TELLS_NOTHING

    @property
    def words(self) -> str:
        """`+0.8 % +- 1.5 %`, or `-6.1 %, too few pairs to tell how much`."""
        width = f" +- {50 * (self.high - self.low):.1f} %"
        return format_change(self.value) + (width if self.is_told else ", too few pairs to tell how much")


class More(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs and seconds that would decide."""

    pairs: int  # Further pairs of blocks or of launches
    seconds: float  # That they would take
    gain: float  # That they would tell


class TuningCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the search to the training."""

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


def value_words(value: KnobValue | None) -> str:
    """`1`, `0.25`, `on`, `as it is`."""
    if value is None:
        return "as it is"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else plain(str(value), 40)


def knob_words(name: str, value: KnobValue) -> str:
    """`bucket_cap_mb 1`, `hierarchical allreduce`, `hierarchical allgather off`."""
    if isinstance(value, bool):
        return plain(name, 40).replace("_", " ") + ("" if value else " off")
    return f"{plain(name, 40)} {value_words(value)}"


def setting_words(values: Mapping[str, KnobValue]) -> str:
    """`bucket_cap_mb 1 and hierarchical allreduce`; without any, the default."""
    return listed(knob_words(name, value) for name, value in values.items()) if values else "the default"
