"""Searches for better knobs made by hand: what sentences, tables and charts of a tuning are tried on."""

import math
from itertools import product

import msgspec
from made_search import cost_of, made

from scalescope.records.tuning import Gain, More, SearchedKnob, Tuning, Values

NASTY = "[bold]\x1b[31m</script><script>alert(1)</script>.py"
HIERARCHICAL = SearchedKnob(name="hierarchical_allreduce", values=(False, True), default=False)
CAP = SearchedKnob(
    name="bucket_cap_mb",
    values=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0, None, 50.0),
    default=25.0,
    unit="MiB",
    logarithmic=True,
)
VIEW = SearchedKnob(name="gradient_as_bucket_view", values=(False, True), default=False)
FUSION = SearchedKnob(
    name="fusion_threshold_mb", values=(0.0, 1.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0), default=128.0, unit="MiB"
)
CYCLE = SearchedKnob(name="cycle_time_ms", values=(0.5, 1.0, 2.5, 5.0, 10.0), default=1.0, unit="ms", logarithmic=True)


def two_hosts_surface(values: Values) -> float:
    """557 ms by itself; hierarchical allreduce with buckets of 1 MB takes 353 ms."""
    cap = float(values.get("bucket_cap_mb", 25.0))
    buckets = 1 + 0.07 * abs(math.log2(cap / 1.0)) if cap < 25 else 1.16 + 0.02 * math.log2(cap / 25)
    view = 0.998 if values.get("gradient_as_bucket_view") else 1.0
    return (0.353 if values.get("hierarchical_allreduce") else 0.48) * buckets * view


def _hierarchical(cap: float) -> Values:
    return {"bucket_cap_mb": cap, "hierarchical_allreduce": True}


def _caps(*caps: float) -> list[Values]:
    return [{"bucket_cap_mb": cap} for cap in caps]


def two_hosts(what: str = "train.py") -> Tuning:
    """A win over a slow link."""
    view: Values = {**_hierarchical(1.0), "gradient_as_bucket_view": True}
    tried: list[Values] = [_hierarchical(1.0), {"hierarchical_allreduce": True}, _hierarchical(2.0), _caps(0.25)[0]]
    tried += [_hierarchical(0.5), view, _hierarchical(4.0)]
    return made(
        (CAP, HIERARCHICAL, VIEW),
        two_hosts_surface,
        tried,
        what=what,
        held={"first_bucket_mb": 1.0},
        left_out={"static_graph": "needs a relaunch: ask with --offline", "nccl_algo": "the backend is gloo"},
    )


def small_tensors_surface(values: Values) -> float:
    """200 small tensors on loopback: buckets that are too small cost a lot, everything else is alike."""
    cap = float(values.get("bucket_cap_mb", 25.0))
    too_small: float = max(0.0, math.log2(1.0 / cap)) ** 1.2
    return 0.0114 * (1 + 1.1 * too_small) * (0.994 if cap == 4 else 1.0)


def keep_default() -> Tuning:
    """Loopback: nothing is gained."""
    tried = _caps(4.0, 0.5, 8.0, 2.0)
    tried.append({"bucket_cap_mb": 4.0, "gradient_as_bucket_view": True})
    left = {"hierarchical_allreduce": "all ranks are on one host"}
    return made((CAP, VIEW), small_tensors_surface, tried, noise=0.02, np=2, nodes=1, left_out=left)


def unfinished() -> Tuning:
    """The training ended before the search did."""
    whole = two_hosts()
    samples = whole.samples[:4]
    return msgspec.structs.replace(
        whole,
        samples=samples,
        decision="undecided",
        values={},
        finalist={},
        gain=None,
        winner_step_s=None,
        complete=False,
        reason="the training ended after 66 steps",
        cost=cost_of(samples, 0.557, None, "online"),
    )


def undecided() -> Tuning:
    """Launches that differ too much."""
    whole = horovod()
    gain = Gain(value=0.011, low=-0.31, high=0.39, pairs=20, level=0.95)
    return msgspec.structs.replace(
        whole,
        decision="undecided",
        values={},
        winner_step_s=None,
        gain=gain,
        reason="the pairs differ too much (+1.1 % +- 35.0 %)",
        more=More(pairs=40, seconds=1500.0, gain=0.1),
        cost=cost_of(whole.samples, 0.0069, None, "offline"),
    )


def one_knob() -> Tuning:
    """Bucket sizes only."""
    return made((CAP,), two_hosts_surface, _caps(1.0, 0.25, 2.0, 4.0, 0.5))


def without_prior() -> Tuning:
    """A search that began blind, and in which one sample failed."""
    tried = [*_caps(50.0), _hierarchical(0.25), _hierarchical(4.0), *_caps(2.0), _hierarchical(1.0)]
    tuning = made((CAP, HIERARCHICAL), two_hosts_surface, tried, prior_error=None)
    failed = msgspec.structs.replace(
        tuning.samples[4], step_s=None, error_s=None, problem="rank 1 ended with code 1", decision="failed"
    )
    return msgspec.structs.replace(tuning, samples=(*tuning.samples[:4], failed, *tuning.samples[5:]))


def horovod_surface(values: Values) -> float:
    """Short cycles and some fusion."""
    fusion = float(values.get("fusion_threshold_mb", 128.0))
    cycle = float(values.get("cycle_time_ms", 1.0))
    return 0.0051 + 0.0009 * abs(math.log2((fusion + 1) / 17)) / 2 + 0.0006 * abs(cycle - 0.5)


def horovod() -> Tuning:
    """By relaunch, over 40 cells."""
    places = ((16.0, 1.0), (16.0, 0.5), (8.0, 0.5), (128.0, 5.0), (0.0, 1.0), (32.0, 0.5), (128.0, 0.5))
    tried: list[Values] = [
        {
            **({} if fusion == FUSION.default else {FUSION.name: fusion}),
            **({} if cycle == CYCLE.default else {CYCLE.name: cycle}),
        }
        for fusion, cycle in places
    ]
    return made(
        (FUSION, CYCLE),
        horovod_surface,
        tried,
        method="offline",
        engine="horovod",
        np=2,
        nodes=1,
        steps=60,
        noise=0.03,
        cut_above=9,
        left_out={"hierarchical_allreduce": "inert: this build has no NCCL"},
    )


def many_knobs(what: str = NASTY) -> Tuning:
    """Long lists of knobs, values and samples, and a text that would like to run."""
    caps = SearchedKnob(
        name="bucket_cap_mb",
        values=(*(0.0625 * 2**power for power in range(16)), None),
        default=None,
        unit="MiB",
        logarithmic=True,
    )
    threads = SearchedKnob(name="threads_per_rank", values=(1, 2, 4, 8), default=1)
    algorithm = SearchedKnob(name="nccl_algo", values=(None, "Ring", "Tree", "<b>CollnetDirect</b>"))

    def surface(values: Values) -> float:
        cap = float(values.get("bucket_cap_mb", 25.0))
        tree = 0.9 if values.get("nccl_algo") == "Tree" else 1.0
        threads = int(values.get("threads_per_rank", 1))
        return 1.2 * (1 + 0.06 * abs(math.log2(cap / 8))) * tree * (0.9 if threads == 2 else 1 + 0.05 * threads)

    tried: list[Values] = [
        {"bucket_cap_mb": 0.0625 * 2**power, "threads_per_rank": threads, "nccl_algo": algorithm}
        for power, threads, algorithm in product((0, 3, 6, 7, 9, 15), (2, 8), ("Tree", "Ring"))
    ]
    return made(
        (caps, threads, algorithm, HIERARCHICAL, VIEW),
        surface,
        tried,
        what=what,
        np=64,
        nodes=8,
        held={"static_graph": True, "first_bucket_mb": 1.0, "backend": "nccl[/bold]"},
        left_out={f"knob_{number}": f"why {number} is left out, at some length " * 3 for number in range(9)},
        notes=("a note with \x1b[31mcolour",),
    )


ALL = {
    "two_hosts": two_hosts,
    "keep_default": keep_default,
    "unfinished": unfinished,
    "undecided": undecided,
    "one_knob": one_knob,
    "without_prior": without_prior,
    "horovod": horovod,
    "many_knobs": many_knobs,
}
