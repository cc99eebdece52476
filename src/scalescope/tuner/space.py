"""Which knobs are searched, over which values, and which of their settings really differ."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import msgspec

from scalescope.engines import find_engine
from scalescope.engines.base import parse_knobs, parse_value
from scalescope.errors import UsageError
from scalescope.records.job import Knob, KnobValue
from scalescope.records.tuning import SearchedKnob, Values
from scalescope.text import assignment, knob_name
from scalescope.tuner.controller_files import Hello
from scalescope.tuner.survey import Survey, profile_of, read_survey

THREADS = "threads_per_rank"
CAP, FIRST, VIEW, HIERARCHICAL = (
    "bucket_cap_mb",
    "first_bucket_mb",
    "gradient_as_bucket_view",
    "hierarchical_allreduce",
)
FUSION, CYCLE, CACHE = "fusion_threshold_mb", "cycle_time_ms", "cache_capacity"

_DDP_DEFAULT: Values = {CAP: 25.0, FIRST: 1.0, VIEW: False, HIERARCHICAL: False, "static_graph": False}
_CAPS_MIB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0, 100.0)
_FIRSTS_MIB = (0.0625, 0.25, 1.0)
_FUSIONS_MIB = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_CYCLES_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0)
_NCCL: dict[str, tuple[KnobValue | None, ...]] = {
    "nccl_algo": (None, "Ring", "Tree"),
    "nccl_proto": (None, "LL", "LL128", "Simple"),
    "nccl_max_nchannels": (None, 2, 4, 8, 16),
}
_ALONE = "one process exchanges nothing"
_HELD = "held"
# Knobs that scripts may notice: those that keep gradients in a buffer of their own, or detach them in place.
ON_REQUEST = (VIEW,)

Dimensions = dict[str, tuple[KnobValue | None, ...]]


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that are searched: each differs from all others in what a step exchanges."""

    engine: str
    knobs: tuple[SearchedKnob, ...]
    held: Values = {}
    left_out: dict[str, str] = {}  # Knobs that are not searched, and why
    settings: tuple[Values, ...] = ({},)  # Without what is held; the first one is the default
    current: Values = {}  # What the training does by itself, as far as it is known

    def complete(self, values: Values) -> Values:
        """Everything that is in force under a setting."""
        return {**self.current, **self.held, **values}


def online_space(
    hello: Hello | Mapping[str, Any], survey: Mapping[str, Any] | None, held: Values, search: Collection[str] = ()
) -> Space:
    """What can change while a DDP training runs; `search`: of what is searched on request only."""
    told = hello if isinstance(hello, Hello) else msgspec.convert(dict(hello), Hello)
    current = {**_DDP_DEFAULT, **told.current}
    dimensions, left_out = _ddp_dimensions(told.hosts, told.world_size, current, search)
    for name in ("static_graph", THREADS, *(_NCCL if told.backend == "nccl" else ())):
        left_out[name] = "it needs a new launch: tune with --offline"
    left_out.update(told.fixed)
    return _space("ddp", dimensions, left_out, held, current, survey)


def offline_space(
    engine: str,
    survey: Mapping[str, Any] | None,
    held: Values,
    search: Collection[str] = (),
    *,
    hosts: Sequence[str],
    cores: int,
    threads: int,
    backend: str = "gloo",
    nccl_build: bool = False,
) -> Space:
    """What can change from launch to launch; `hosts`: that of every rank, `cores`: of one of them.

    `threads`: those a rank has by default; `nccl_build`: whether this Horovod reduces through NCCL.
    """
    if engine == "horovod":
        dimensions, left_out, current = _horovod_dimensions(hosts, survey, nccl_build)
    else:
        current = dict(_DDP_DEFAULT)
        dimensions, left_out = _ddp_dimensions(hosts, len(hosts), current, search)
        dimensions["static_graph"] = (False, True)
        if backend == "nccl" and len(hosts) > 1:
            dimensions.update(_NCCL)
    counts = _thread_counts(cores, max(Counter(hosts).values(), default=1), threads)
    if len(counts) > 1:
        dimensions[THREADS] = counts
    else:
        left_out[THREADS] = f"{cores} cores leave one to every rank"
    return _space(engine, dimensions, left_out, held, {**current, THREADS: threads}, survey)


def parse_held(engine: str, texts: Sequence[str]) -> Values:
    """`name=value` texts of --hold as checked values; unknown names are told with those that come near."""
    own = [text for text in texts if knob_name(text) == THREADS]
    values = dict(parse_knobs(find_engine(engine), [text for text in texts if text not in own]).values)
    for text in own:
        values[THREADS] = parse_value(_THREADS_KNOB, assignment(text, "--hold", f"{THREADS}=2")[1].strip())
    return values


def check_searched(engine: str, names: Sequence[str], held: Collection[str]) -> tuple[str, ...]:
    """Names of --search, checked."""
    known = ON_REQUEST if engine == "ddp" else ()
    for name in map(knob_name, names):
        if name not in known:
            instead = f"use {', '.join(known)}" if known else "leave it out"
            raise UsageError(f"--search: '{name}' is no knob of {engine} that is searched on request only: {instead}")
        if name in held:
            raise UsageError(f"{name} is both held and to be searched: keep one of them")
    return tuple(map(knob_name, names))


_THREADS_KNOB = Knob(name=THREADS, type="int", default=None, low=1, high=4096, meaning="threads of every rank")


def _ddp_dimensions(
    hosts: Sequence[str], ranks: int, current: Values, search: Collection[str]
) -> tuple[Dimensions, dict[str, str]]:
    dimensions: Dimensions = {VIEW: (False, True)} if VIEW in search else {}
    left_out = {} if VIEW in search else {VIEW: f"it is searched on request only: --search {VIEW}"}
    if ranks < 2:
        return dimensions, {**left_out, **dict.fromkeys((CAP, FIRST, HIERARCHICAL), _ALONE)}
    caps = _ascending(*_CAPS_MIB, current[CAP])
    dimensions[CAP] = caps
    dimensions[FIRST] = _ascending(*_FIRSTS_MIB, current[FIRST], *caps)
    if reason := _no_hierarchy(hosts):
        return dimensions, {**left_out, HIERARCHICAL: reason}
    return {**dimensions, HIERARCHICAL: (False, True)}, left_out


def _horovod_dimensions(
    hosts: Sequence[str], survey: Mapping[str, Any] | None, nccl_build: bool
) -> tuple[Dimensions, dict[str, str], Values]:
    current = {knob.name: knob.default for knob in find_engine("horovod").knobs if knob.default is not None}
    left_out = {"hierarchical_allgather": "training gathers nothing: it has no effect"}
    if len(hosts) < 2:
        return {}, {**left_out, **dict.fromkeys((FUSION, CYCLE, CACHE, HIERARCHICAL), _ALONE)}, current
    tensors = len(read_survey(survey).gradients) if survey else 0
    capacities = [0, 1024, *([2 ** (tensors - 1).bit_length()] if tensors > 1024 else [])]
    dimensions: Dimensions = {FUSION: _FUSIONS_MIB, CYCLE: _CYCLES_MS, CACHE: tuple(capacities)}
    if not nccl_build:
        left_out[HIERARCHICAL] = "this Horovod does not reduce through NCCL: it has no effect"
    elif reason := _no_hierarchy(hosts):
        left_out[HIERARCHICAL] = reason
    else:
        dimensions[HIERARCHICAL] = (False, True)
    return dimensions, left_out, current


def _no_hierarchy(hosts: Sequence[str]) -> str:
    """Why there is nothing to reduce inside hosts first; empty: there is."""
    counts = Counter(hosts)
    if len(counts) < 2:
        return "all ranks are on one host"
    if len(set(counts.values())) > 1:
        return "the hosts have unequal numbers of ranks"
    return "every host has one rank" if max(counts.values()) == 1 else ""


def _thread_counts(cores: int, ranks: int, threads: int) -> tuple[int, ...]:
    most = max(cores // ranks, 1)
    powers = itertools.takewhile(lambda count: count <= most, (2**power for power in range(16)))
    return tuple(sorted({*powers, threads}))


def _space(
    engine: str,
    dimensions: Dimensions,
    left_out: dict[str, str],
    held: Values,
    current: Values,
    survey: Mapping[str, Any] | None,
) -> Space:
    """All combinations, those that do the same only once: the one nearest to the default stands for them."""
    held = _checked(engine, held)
    reasons = {**left_out, **{name: _HELD for name in held if name in dimensions or name in left_out}}
    free = {name: values for name, values in dimensions.items() if name not in reasons}
    start = {**current, **held}
    told = read_survey(survey) if survey else None
    does = _doing(engine, told) if told and told.gradients else None
    found: dict[Hashable, Values] = {}
    for complete in _combinations(free, start):
        does_this = does(complete) if does else tuple(sorted(complete.items()))
        found.setdefault(does_this, _changed(complete, start, free))
    settings = tuple(found.values())
    searched = _searched(engine, free, settings, start)
    inert = set(free) - {knob.name for knob in searched}
    return Space(
        engine=engine,
        knobs=searched,
        held=held,
        left_out={**reasons, **dict.fromkeys(sorted(inert), "it changes nothing here")},
        settings=settings,
        current=current,
    )


def _checked(engine: str, held: Values) -> Values:
    """Held values, against the engine's knobs and their ranges."""
    return parse_held(engine, [f"{name}={value}" for name, value in held.items()])


def _combinations(free: Dimensions, start: Values) -> list[Values]:
    """Complete settings, the nearest to the default first; a first bucket is one of a few sizes, or the cap."""
    made = []
    for values in itertools.product(*free.values()):
        chosen = {name: value for name, value in zip(free, values, strict=True) if value is not None}
        complete = {**start, **chosen}
        if sum(name in chosen for name in _NCCL) > 1:  # one of them at a time
            continue
        if FIRST in free:
            first, cap = float(complete[FIRST]), float(complete[CAP])
            usual = first in (*_FIRSTS_MIB, cap, start[FIRST]) and first <= cap
            if not usual and complete != start:
                continue
        made.append(complete)
    return sorted(made, key=lambda complete: _distance(complete, start))


def _distance(values: Values, start: Values) -> float:
    """Octaves between numbers, and one for anything else that differs."""
    return sum(_apart(value, start.get(name)) for name, value in values.items() if value != start.get(name))


def _apart(value: KnobValue, other: KnobValue | None) -> float:
    if isinstance(value, (int, float)) and isinstance(other, (int, float)) and not isinstance(value, bool):
        return abs(math.log2((value + 0.01) / (other + 0.01)))
    return 1.0


def _changed(complete: Values, start: Values, free: Dimensions) -> Values:
    """What differs; a cap comes with its first bucket, which DDP would otherwise make as large as the cap."""
    changed = {name: complete[name] for name in free if complete.get(name) != start.get(name)}
    return {**changed, FIRST: complete[FIRST]} if CAP in changed and FIRST in free else changed


def _doing(engine: str, survey: Survey) -> Callable[[Values], Hashable]:
    """What a setting makes a step do: alike for settings that are the same to the training."""
    profile, family = profile_of(survey), find_engine(engine)
    shape = {CAP, FIRST, FUSION, CYCLE, CACHE, VIEW}

    def does(complete: Values) -> Hashable:
        exchange = family.exchange(profile, complete)
        fused = min(exchange.fuse_bytes, survey.total_bytes)
        rest = tuple(sorted((name, value) for name, value in complete.items() if name not in shape))
        return msgspec.structs.replace(exchange, fuse_bytes=fused), rest

    return does


def _searched(engine: str, free: Dimensions, settings: Sequence[Values], start: Values) -> tuple[SearchedKnob, ...]:
    """The knobs that still have more than one value, with the values that are left."""
    knobs = {knob.name: knob for knob in find_engine(engine).knobs}
    found = []
    for name, values in free.items():
        used = {values_.get(name, start.get(name)) for values_ in settings}
        left = tuple(value for value in values if value in used)
        if len(left) > 1:
            unit = knobs[name].unit if name in knobs else ""
            numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in left)
            found.append(SearchedKnob(name=name, values=left, default=start.get(name), unit=unit, logarithmic=numbers))
    return tuple(found)


def _ascending(*values: KnobValue) -> tuple[float, ...]:
    return tuple(sorted({float(value) for value in values}))
