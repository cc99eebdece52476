"""Profile of a workload: the times and memory of a step on one device at several batch sizes."""

import math
from typing import Annotated as A  # noqa: N817 - every field says it
from typing import ClassVar

import msgspec

from scalescope.options import ASSIGNMENTS, TEXT, TEXTS, Opt, choice, count, number
from scalescope.records.cluster import Device
from scalescope.records.store import Record

Scalar = int | float | bool | str | None
# Values are typed by the annotations of the factory, which is imported later.
_ARGUMENTS = ASSIGNMENTS._replace(
    read=lambda value, _flag: value, write=lambda value: [f"{name}={each}" for name, each in value.items()]
)


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model by name or `file.py:factory`, its arguments, and how its inputs, loss and optimizer are made."""

    model: A[
        str,
        Opt("Built-in name, package.module:factory or file.py:factory; or -- COMMAND instead.", TEXT, argument=True),
    ]
    model_args: A[
        dict[str, Scalar],
        Opt("Constructor argument; repeatable.", _ARGUMENTS, flag="--model-arg", group="Model"),
    ] = {}
    inputs: A[
        tuple[str, ...],
        Opt(
            "3x224x224 or int64:128:vocab=30000; once per input.",
            TEXTS,
            flag="--input",
            metavar="SHAPE",
            group="Model",
        ),
    ] = ()
    loss: A[
        str | None, Opt("Name or file.py:function (default: that of the model).", TEXT, group="Model", rare=True)
    ] = None
    optimizer: A[str, Opt("Name or file.py:function.", TEXT, group="Model", rare=True)] = "sgd"
    learning_rate: A[
        float | None,
        Opt(
            "Learning rate of a named optimizer.",
            number(lambda value: 0 <= value < math.inf, "a number from 0 on, such as 0.1"),
            group="Model",
            rare=True,
        ),
    ] = None
    # bf16: forward and loss under autocast; parameters and gradients stay what they are
    dtype: A[
        str, Opt("bf16: mixed precision of a MODEL (autocast).", choice("fp32", "bf16"), group="Model", rare=True)
    ] = "fp32"
    # Gradients are exchanged after the last pass
    accumulate: A[
        int, Opt("Gradient accumulation: passes that a step's batch is split into.", count(), group="Model", rare=True)
    ] = 1


class Gradient(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter that gets a gradient."""

    name: str
    bytes: int
    element_bytes: int = 4


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """Single steps over the typical step at their time, largest first, in groups: how many, and their mean."""

    counts: tuple[int, ...]
    levels: tuple[float, ...]


class ProfilePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A step with one batch size, one process alone; medians over steps, in seconds."""

    batch: int
    step_s: float
    forward_s: float  # From the start of the step to the start of backward: gradients cleared, forward, loss
    backward_s: float
    optimizer_s: float  # From the end of backward to the end of the step
    # When each gradient is ready, after the start of backward, in the profile's order of gradients.
    ready_s: tuple[float, ...]
    noise: float  # Relative standard deviation of single steps
    error: float  # Relative standard error of the median step, from its blocks
    cores_used: float  # CPU seconds per second of a step
    memory_bytes: int  # Peak while stepping: of the process on a CPU, of torch's allocations on a GPU
    steps: int
    remade: int = 0  # How often it was measured again because it lay off its neighbours or other programs were busy
    outlying: bool = False  # It still lies off its neighbours after being measured again
    foreign_cores: float = 0.0
    residuals: Residuals | None = None  # None: the profile keeps nothing but `noise`


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """Slowdown of a step by other processes of the host that make the same step at the same time."""

    copies: int
    batch: int
    slowdown: float  # Time of a step next to the others, over the time alone
    error: float  # Relative standard error
    noise: float  # Relative standard deviation of single steps
    foreign_cores: float = 0.0  # Cores that other programs kept busy in the rounds that count
    residuals: Residuals | None = None  # None: the profile keeps nothing but `noise`


class ShardedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One process as rank 0 of `ranks` that share its model in shards, against the same process with the whole model.

    Collectives took no time, so this is what sharding itself costs: hooks and copies, less optimizer, less memory.
    """

    ranks: int
    batch: int
    reshards: bool | None  # The knob reshard_after_forward; None: its default
    added_s: float  # Of a step
    added_bytes: int  # At the peak of memory; below 0 where shards take less than the whole model


class ModelProfile(Record, frozen=True, kw_only=True, tag="profile"):
    """The compute side of an estimate: saved once, used for every engine, cluster and number of processes."""

    current_version: ClassVar[int] = 1

    workload: WorkloadSpec
    torch: str
    device: str  # cpu, or the name of the GPU
    hostname: str
    threads_per_rank: int
    gradients: tuple[Gradient, ...]  # In the order in which backward finishes them
    buffers_bytes: tuple[int, ...] = ()  # What DDP broadcasts before each forward: one size per kind of number
    buffers: int = 0  # Tensors that these bytes are in
    norm_channels: tuple[int, ...] = ()  # Of every SyncBatchNorm: its ranks exchange statistics in forward and backward
    points: tuple[ProfilePoint, ...]  # By ascending batch
    crowds: tuple[Contention, ...] = ()  # By ascending number of copies
    interpolation_error: float  # Largest relative miss of a measured point when it is predicted from its neighbours
    memory_limit_bytes: int  # What the device has; 0: not known
    too_large: int | None = None  # The smallest batch that did not fit when it was tried
    seconds: float = 0.0  # What taking the profile took
    # Relative standard deviation of a step from launch to launch of the same program; 0: not known.
    launch_spread: float = 0.0
    ddp_s: float | None = None  # What DDP adds to a step of one process; None: not measured
    sharded: tuple[ShardedPoint, ...] = ()  # By ranks and batch; empty: no engine that shards was asked for

    @property
    def kind(self) -> Device:
        """The kind of its device."""
        return "cpu" if self.device == "cpu" else "gpu"
