"""The search on simulated landscapes with a mis-calibrated simulator: samples to the best, and wrong wins."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from scalescope.records.tuning import Sample
from scalescope.tuner.blocks import Block
from scalescope.tuner.search import ONLINE, coordinates
from scalescope.tuner.space import ON_REQUEST, Space, offline_space, online_space
from scalescope.tuner.tuner import Tuner

LANDSCAPES = 40
PLANTED = 200
WITHIN = 0.02
MIB = 1024 * 1024
Generator = np.random.Generator


class Landscape(NamedTuple):
    """A space, what the simulator says about it, and the truth."""

    space: Space
    predicted: list[float]
    truth: np.ndarray


class Ended(NamedTuple):
    """A search that is over."""

    tuner: Tuner
    samples: list[Sample]


def run() -> list[dict[str, Any]]:
    """Rows on the search, then on decisions where the default is best."""
    landscapes = [landscape(np.random.default_rng(5000 + seed), seed) for seed in range(LANDSCAPES)]
    rows = [
        _row("ours", [_search(each, seed, with_prior=True) for seed, each in enumerate(landscapes)], landscapes),
        _row(
            "without a simulator",
            [_search(each, seed, with_prior=False) for seed, each in enumerate(landscapes)],
            landscapes,
        ),
        _random_row(landscapes),
    ]
    return [*rows, _planted_row(landscapes)]


def landscape(rng: Generator, number: int) -> Landscape:
    """Random gradients, links and compute; the truth has other links, other overlap slowdowns and errors."""
    hosts = int(rng.integers(1, 3))
    per_host = 2 if hosts > 1 else int(rng.choice([2, 4]))
    horovod = number % 4 == 3
    tensors = int(rng.integers(8, 120))
    total = math.exp(rng.uniform(math.log(2), math.log(120))) * MIB
    shares = rng.lognormal(0, 1.2, tensors)
    sizes = np.maximum(shares / shares.sum() * total, 256).astype(int)
    backward_s = math.exp(rng.uniform(math.log(0.02), math.log(0.2)))
    ready = np.sort(rng.uniform(0.05, 1, tensors)) * backward_s
    ready[-1] = backward_s
    sent_s = backward_s * math.exp(rng.uniform(math.log(0.15), math.log(3)))
    latency_s = math.exp(rng.uniform(math.log(1e-4), math.log(2e-3)))
    share = float(rng.uniform(0.02, 0.3)) if hosts > 1 else float(rng.uniform(0.4, 0.9))
    cores = per_host * int(rng.choice([1, 1, 2]))
    believed = {"sent": sent_s / total, "latency": latency_s, "hierarchy": rng.uniform(1.2, 2.2), "share": share}
    true = {
        "sent": believed["sent"] * rng.lognormal(0, 0.25),
        "latency": latency_s * rng.lognormal(0, 0.6),
        "hierarchy": believed["hierarchy"] * rng.lognormal(0, 0.2),
        "share": min(share * rng.lognormal(0, 0.5), 1.0),
    }

    def survey(links: dict[str, float], copy: float) -> dict[str, Any]:
        def table(rate: float, latency: float) -> list[list[float]]:
            points = [4096 * 4**power for power in range(8)]
            return [[size, latency + rate * size, links["share"] * (latency + rate * size)] for size in points]

        costs = {"flat": table(links["sent"], links["latency"])}
        if hosts > 1:
            costs["hierarchical"] = table(links["sent"] / links["hierarchy"], 2.5 * links["latency"])
        return {
            "gradients": [[f"p{index}", int(size), 4] for index, size in enumerate(sizes)],
            "ready_s": ready.tolist(),
            "forward_s": backward_s / 2,
            "backward_s": backward_s,
            "optimizer_s": backward_s / 8,
            "step_s": 0.0,
            "ranks_per_host": per_host,
            "hosts": hosts,
            "cores": cores,
            "threads": 1,
            "costs": costs,
            "copy_s_per_byte": copy,
            "backend": "gloo",
            "engine": "horovod" if horovod else "ddp",
        }

    seen, real = survey(believed, 1e-10), survey(true, 1e-10 * rng.lognormal(0, 0.5))
    names = [f"host{rank // per_host}" for rank in range(hosts * per_host)]
    if horovod:
        space = offline_space("horovod", seen, {}, hosts=names, cores=cores, threads=1)
    else:
        hello = {"engine": "ddp", "world_size": len(names), "hosts": names, "backend": "gloo"}
        space = online_space(hello, seen, {}, ON_REQUEST)
    predicted, actual = space.predict(seen), space.predict(real)
    assert predicted
    assert actual
    return Landscape(space, predicted, np.array(actual) * np.exp(_structured(rng, space, 0.05)))


def _structured(rng: Generator, space: Space, size: float) -> np.ndarray:
    """Errors that neighbours share."""
    at = coordinates(space)
    apart = ((at[:, None, :] - at[None, :, :]) ** 2).sum(axis=2)
    covariance = size**2 * np.exp(-apart / (2 * 1.5**2)) + 1e-8 * np.eye(len(at))
    return np.linalg.cholesky(covariance) @ rng.normal(size=len(at))


def _search(case: Landscape, seed: int, *, with_prior: bool, confirm: bool = False) -> Ended:
    """Run a search; block medians are wrong by 3 %."""
    rng = np.random.default_rng(seed)
    tuner = Tuner(case.space, case.predicted if with_prior else None, ONLINE)
    samples = []
    while (asked := tuner.next()) and (confirm or asked.phase != "confirm"):
        truth = case.truth[case.space.settings.index(asked.values)] * math.exp(rng.normal(0, 0.025))
        steps = tuple(float(step) for step in truth * np.exp(rng.normal(0, 0.05, asked.steps)))
        cut = asked.limit_s is not None and median(steps[:3]) > asked.limit_s
        samples.append(tuner.tell(asked, Block(step_s=steps[:3] if cut else steps, cut=cut)))
    return Ended(tuner, samples)


def _until_found(case: Landscape, ended: Ended) -> float:
    for count, sample in enumerate(ended.samples, 1):
        if case.truth[case.space.settings.index(sample.values)] <= (1 + WITHIN) * case.truth.min():
            return count
    return math.inf


def _row(name: str, ended: list[Ended], landscapes: list[Landscape]) -> dict[str, Any]:
    found = [_until_found(case, each) for case, each in zip(landscapes, ended, strict=True)]
    slower, worst, away = [], [], []
    for case, each in zip(landscapes, ended, strict=True):
        times = [
            case.truth[case.space.settings.index(sample.values)]
            for sample in each.samples
            for _ in range(sample.steps + 2)
        ]
        slower.append(float(case.truth[0] / np.mean(times)))
        worst.append(float(max(times) / case.truth[0]))
        best = case.space.settings.index(each.tuner.best[0])
        away.append(case.truth[best] / case.truth.min() - 1)
    return {
        "what": f"search: {name}",
        "cases": len(ended),
        **_percentiles(found),
        "samples made, mean": float(np.mean([len(each.samples) for each in ended])),
        "steps, most": max(sum(sample.steps + 2 for sample in each.samples) for each in ended),
        "end above best %, mean": 100 * float(np.mean(away)),
        "throughput, mean": float(np.mean(slower)),
        "throughput, least": min(slower),
        "worst sample": max(worst),
    }


def _percentiles(found: Sequence[float]) -> dict[str, Any]:
    """What was never found counts as more than every sample."""
    found = sorted(found)
    at = median(found), found[math.ceil(0.9 * len(found)) - 1]
    told = [count if math.isfinite(count) else f"more than {ONLINE.max_samples}" for count in at]
    return {"samples to within 2 %, median": told[0], "90th percentile": told[1]}


def _random_row(landscapes: list[Landscape]) -> dict[str, Any]:
    found = []
    for seed, case in enumerate(landscapes):
        order = [0, *(1 + np.random.default_rng(seed).permutation(len(case.truth) - 1))]
        good = case.truth <= (1 + WITHIN) * case.truth.min()
        found.append(next(count for count, setting in enumerate(order, 1) if good[setting]))
    return {
        "what": "search: random",
        "cases": len(found),
        **_percentiles(found),
    }


def _planted_row(landscapes: list[Landscape]) -> dict[str, Any]:
    """The default is made the best, by 0 to 5 %; the simulator still believes in what it believed."""
    wins, losses, lows, reached = 0, [], [], 0
    for seed in range(PLANTED):
        rng = np.random.default_rng(9000 + seed)
        case = landscapes[seed % len(landscapes)]
        truth = np.maximum(case.truth, case.truth[0] * np.exp(rng.uniform(0, 0.05, len(case.truth))))
        truth[0] = case.truth[0]
        ended = _search(case._replace(truth=truth), 9000 + seed, with_prior=True, confirm=True)
        outcome = ended.tuner.outcome()
        reached += bool(outcome.finalist)
        if outcome.decision == "use" and outcome.gain:
            wins += 1
            losses.append(float(truth[case.space.settings.index(outcome.values)] / truth[0] - 1))
            lows.append(outcome.gain.low)
    return {
        "what": "the default is best",
        "cases": PLANTED,
        "confirmed": reached,
        "wrong wins": wins,
        "wrong wins %": 100 * wins / PLANTED,
        "true loss %, most": 100 * max(losses, default=0.0),
        "interval's lower end %, least": 100 * min(lows, default=0.0),
    }
