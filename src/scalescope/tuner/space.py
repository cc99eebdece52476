"""Makes the space of a search: its knobs, their values, and the settings that really differ.

An engine's knobs say which values a search tries; here is what depends on the training: its hosts, backend and survey.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from scalescope import host
from scalescope.engines import find_engine
from scalescope.errors import UsageError
from scalescope.records.job import KnobValue
from scalescope.records.tuning import SearchedKnob, Values
from scalescope.text import knob_name
from scalescope.tuner.controller_files import Hello
from scalescope.tuner.prior import HIERARCHICAL, Survey, predict, profile_of, read_survey
from scalescope.tuner.settings import THREADS, fixed_knobs, knob_texts

CAP, FIRST, VIEW = "bucket_cap_mb", "first_bucket_mb", "gradient_as_bucket_view"
FUSION, CYCLE, CACHE = "fusion_threshold_mb", "cycle_time_ms", "cache_capacity"
CHANNELS, _ROUTES = "nccl_max_nchannels", ("nccl_algo", "nccl_proto")
_NCCL, _ALLGATHER, TORUS = "nccl_", "hierarchical_allgather", "torus_allreduce"
_NOT_ABOUT_EXCHANGE = (VIEW, "static_graph")  # These can matter to one process, too
_SHAPE_OF_EXCHANGE = {CAP, FIRST, FUSION, CYCLE, CACHE, VIEW}  # All of their effect shows in an Exchange

Dimensions = dict[str, tuple[KnobValue | None, ...]]


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that are searched: each differs from all others in what a step exchanges."""

    engine: str
    knobs: tuple[SearchedKnob, ...]
    fixed: Values = {}
    left_out: dict[str, str] = {}  # Knobs that are not searched, and why
    settings: tuple[Values, ...] = ({},)  # Without what is fixed; the first one is the default
    current: Values = {}  # What the training does by itself, as far as it is known

    def complete(self, values: Values) -> Values:
        """All values that apply under a setting."""
        return {**self.current, **self.fixed, **values}

    def predict(self, survey: Mapping[str, Any]) -> list[float] | None:
        """Seconds of a step for every setting; None where the survey does not tell what messages cost."""
        return predict(self.engine, [self.complete(values) for values in self.settings], survey)


def online_space(
    training: Hello, survey: Mapping[str, Any] | None, fixed: Values, search: Collection[str] = ()
) -> Space:
    """Space of what can change while a training runs; `search`: knobs that are searched on request only."""
    current = {**_defaults(training.engine), **training.current}
    surveyed = read_survey(survey) if survey else None
    dimensions, left_out = _dimensions(
        training.engine,
        training.hosts,
        training.world_size,
        current,
        search,
        surveyed,
        backend=training.backend,
        nccl_build=training.nccl_build,
    )
    live = {knob.name for knob in find_engine(training.engine).knobs if knob.changes == "live"}
    for name in [*(name for name in dimensions if name not in live), THREADS.name]:
        dimensions.pop(name, None)
        left_out[name] = "it needs a new launch: tune with --offline"
    left_out.update(training.fixed)
    return _space(training.engine, dimensions, left_out, fixed, current, surveyed)


def offline_space(
    engine: str,
    survey: Mapping[str, Any] | None,
    fixed: Values,
    search: Collection[str] = (),
    *,
    hosts: Sequence[str],
    cores: int,
    threads: int,
    backend: str = "gloo",
    nccl_build: bool = False,
) -> Space:
    """Space of what can change from launch to launch.

    Args:
        engine: The engine whose knobs are searched.
        survey: Of the training, or None: then nothing is known to be the same.
        fixed: Knobs that are not searched, with their values.
        search: Knobs that are searched on request only.
        hosts: The host of every rank.
        cores: Cores of one host.
        threads: Threads of a rank by default.
        backend: Backend of the ranks' messages.
        nccl_build: Whether the engine reduces through NCCL.
    """
    current, surveyed = _defaults(engine), read_survey(survey) if survey else None
    dimensions, left_out = _dimensions(
        engine, hosts, len(hosts), current, search, surveyed, backend=backend, nccl_build=nccl_build
    )
    most = host.threads_per_rank(cores, max(Counter(hosts).values(), default=1))
    counts = tuple(sorted({threads, *(2**power for power in range(16) if 2**power <= most)}))
    if len(counts) > 1:
        dimensions[THREADS.name] = counts
    else:
        left_out[THREADS.name] = f"{cores} cores leave one to every rank"
    return _space(engine, dimensions, left_out, fixed, {**current, THREADS.name: threads}, surveyed)


def check_searched(engine: str, names: Sequence[str], fixed: Collection[str]) -> tuple[str, ...]:
    """Names of --search, checked."""
    known = [knob.name for knob in find_engine(engine).knobs if knob.on_request]
    for name in map(knob_name, names):
        if name not in known:
            instead = f"use {', '.join(known)}" if known else "leave it out"
            raise UsageError(f"--search takes knobs of {engine} not searched by default, and not '{name}': {instead}")
        if name in fixed:
            raise UsageError(f"{name} is both fixed and to be searched: keep one of them")
    return tuple(map(knob_name, names))


def _defaults(engine: str) -> Values:
    """An engine's own values where nothing is given, as far as they are known."""
    values = {knob.name: knob.unset if knob.default is None else knob.default for knob in find_engine(engine).knobs}
    return {name: value for name, value in values.items() if value is not None}


def _dimensions(
    engine: str,
    hosts: Sequence[str],
    ranks: int,
    current: Values,
    search: Collection[str],
    surveyed: Survey | None,
    *,
    backend: str,
    nccl_build: bool,
) -> tuple[Dimensions, dict[str, str]]:
    """Values to try of every knob that can matter here, and why other knobs are left out."""
    dimensions: Dimensions = {}
    left_out: dict[str, str] = {}
    for knob in find_engine(engine).knobs:
        name = knob.name
        if name == _ALLGATHER:
            left_out[name] = "training gathers nothing: it has no effect"
        if not knob.tried or (name.startswith(_NCCL) and backend != "nccl"):
            continue
        if knob.on_request and name not in search:
            left_out[name] = f"not searched by default: add --search {name}"
        elif ranks < 2 and name not in _NOT_ABOUT_EXCHANGE:
            left_out[name] = "one process exchanges nothing"
        elif name in (HIERARCHICAL, TORUS) and (
            reason := _no_hierarchy(hosts, inert=find_engine(engine).title if knob.variable and not nccl_build else "")
        ):
            left_out[name] = reason
        else:
            dimensions[name] = knob.tried
    if CAP in dimensions:
        caps = _ascending(*dimensions[CAP], current[CAP])
        dimensions |= {CAP: caps, FIRST: _ascending(*dimensions[FIRST], current[FIRST], *caps)}
    tensors = len(surveyed.gradients) if surveyed else 0
    if CACHE in dimensions and tensors > int(current[CACHE]):
        dimensions[CACHE] += (2 ** (tensors - 1).bit_length(),)
    return dimensions, left_out


def _no_hierarchy(hosts: Sequence[str], *, inert: str) -> str:
    """Say why there is nothing to reduce inside hosts first; empty: there is. `inert` is an engine that cannot."""
    counts = Counter(hosts)
    if inert:
        return f"this {inert} does not reduce through NCCL: it has no effect"
    if len(counts) < 2:
        return "all ranks are on one host"
    if len(set(counts.values())) > 1:
        return "the hosts have unequal numbers of ranks"
    return "every host has one rank" if max(counts.values()) == 1 else ""


def _space(
    engine: str,
    dimensions: Dimensions,
    left_out: dict[str, str],
    fixed: Values,
    current: Values,
    surveyed: Survey | None,
) -> Space:
    """All combinations, those that do the same only once: the one nearest to the default stands for them."""
    fixed = fixed_knobs(engine, knob_texts(fixed))  # checked
    reasons = {**left_out, **{name: "fixed" for name in fixed if name in dimensions or name in left_out}}
    free = {name: values for name, values in dimensions.items() if name not in reasons}
    start = {**current, **fixed}
    profile = profile_of(surveyed) if surveyed and surveyed.gradients else None
    found: dict[Hashable, Values] = {}
    for complete in _combinations(engine, free, start):
        does: Hashable = tuple(sorted(complete.items()))
        if surveyed and profile:  # what it makes a step do
            exchange = find_engine(engine).exchange(profile, complete)
            exchange = msgspec.structs.replace(exchange, fuse_bytes=min(exchange.fuse_bytes, surveyed.total_bytes))
            does = exchange, tuple(sorted((name, complete[name]) for name in complete.keys() - _SHAPE_OF_EXCHANGE))
        changed = {name: complete[name] for name in free if complete.get(name) != start.get(name)}
        if CAP in changed and FIRST in free:  # DDP would otherwise make the first bucket as large as the cap
            changed[FIRST] = complete[FIRST]
        found.setdefault(does, changed)
    settings = tuple(found.values())

    units = {knob.name: knob.unit for knob in find_engine(engine).knobs}
    searched = []
    for name, values in free.items():
        used = {setting.get(name, start.get(name)) for setting in settings}
        left = tuple(value for value in values if value in used)
        if len(left) > 1:
            knob = SearchedKnob(name=name, values=left, default=start.get(name), unit=units.get(name, ""))
            searched.append(msgspec.structs.replace(knob, logarithmic=all(map(_is_number, left))))
        else:
            reasons[name] = "it changes nothing here"
    return Space(
        engine=engine, knobs=tuple(searched), fixed=fixed, left_out=reasons, settings=settings, current=current
    )


def _combinations(engine: str, free: Dimensions, start: Values) -> list[Values]:
    """Complete settings, the nearest to the default first; a first bucket is one of a few sizes, or the cap."""
    firsts = next((knob.tried for knob in find_engine(engine).knobs if knob.name == FIRST), ())
    made = []
    for values in itertools.product(*free.values()):
        chosen = {name: value for name, value in zip(free, values, strict=True) if value is not None}
        complete = {**start, **chosen}
        if CHANNELS in chosen and any(name in chosen for name in _ROUTES):  # channels, or routes of messages
            continue
        if complete.get(HIERARCHICAL) is True and complete.get(TORUS) is True:  # either one replaces the other
            continue
        if FIRST in free:
            first, cap = float(complete[FIRST]), float(complete[CAP])
            usual = first in (*firsts, cap, start[FIRST]) and first <= cap
            if not usual and complete != start:
                continue
        made.append(complete)

    def distance(complete: Values) -> float:
        """Octaves between numbers, and one for anything else that differs."""
        pairs = [(value, start.get(name)) for name, value in complete.items() if value != start.get(name)]
        return math.fsum(
            abs(math.log2((a + 0.01) / (b + 0.01))) if _is_number(a) and _is_number(b) else 1.0 for a, b in pairs
        )

    return sorted(made, key=distance)


def _is_number(value: KnobValue | None) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ascending(*values: KnobValue | None) -> tuple[float, ...]:
    return tuple(sorted({float(value) for value in values if value is not None}))
