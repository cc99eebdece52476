"""Takes the profile of a model on this machine, and makes a record of what its ranks wrote."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from scalescope.engines import USUAL
from scalescope.errors import UsageError, WorkFailed
from scalescope.estimation.profile_blocks import Block, Model, Pair, ProfileTask, Sharding, file_of
from scalescope.estimation.profile_plan import misses_of
from scalescope.jobs.interpreter import torch_version
from scalescope.jobs.rank_program import RankProgram, run_ranks
from scalescope.records.job import Knobs
from scalescope.records.profile import (
    Contention,
    Gradient,
    ModelProfile,
    ProfilePoint,
    ShardedPoint,
    WorkloadSpec,
)
from scalescope.records.request import EstimateRequest
from scalescope.records.run import QUIET
from scalescope.records.store import complete_lines
from scalescope.simulator.jitter import grouped
from scalescope.stats import relative_deviation, standard_errors

_LAUNCHES = 3  # Of a profile on a CPU, each of _LAUNCH_S at least
_LAUNCH_S = 6.0
_LATE = 2.0  # Times its seconds that the steps of a launch may take and still be followed by another launch
# From launch to launch, relative standard deviation of a step, and as many launches as count for it: those of a
# profile are few (make bench SECTION=estimates_repeat).
USUAL_SPREAD, _USUAL_WEIGHT = 0.025, 6
_ERROR_OF_ONE = 0.03  # Relative standard error that is assumed where nothing was repeated
_FEW = 3
_BATCHES_DIFFER = 0.04  # Relative standard deviation of contention over batch sizes: whether a step fits into caches
# Relative miss above which a point is called outlying when others, without it, miss by less than half of it.
_OUTLYING = 0.05


def take_profile(
    task: ProfileTask,
    *,
    threads_per_rank: int,
    folder: Path,
    timeout_s: float = 600.0,
    env: Mapping[str, str] | None = None,
) -> ModelProfile:
    """Run the program that profiles, as often as the task says, and read its blocks.

    Memory and cores are placed anew in every launch, so blocks of one launch are more alike than launches are. The
    first launch chooses the batch sizes. It is the only one where single steps take so long that it needs more than
    twice its time.
    """
    began = time.monotonic()
    ranks = max(task.together, default=1)
    blocks: list[list[Block]] = [[] for _ in range(ranks)]
    for launch in range(task.launches):
        place = folder.with_name(f"{folder.name}-{launch + 1}") if launch else folder
        run_ranks(
            RankProgram(
                module="scalescope.estimation.profile_ranks",
                task=task,
                np=ranks,
                knobs=Knobs(engine=USUAL.name),
                folder=place,
                threads_per_rank=threads_per_rank,
                env=dict(env or {}),
                writes="profile-rank*.jsonl",
                timeout_s=timeout_s,
            )
        )
        model, made = read_blocks(place, ranks)
        for of_rank, new in zip(blocks, made, strict=True):
            of_rank += [msgspec.structs.replace(block, launch=launch) for block in new]
        chosen = {block.batch for block in made[0] if block.copies == 1 and not block.failed}
        task = msgspec.structs.replace(task, batches=tuple(sorted(chosen)) or task.batches, every=True)
        if sum(step_s for block in made[0] for step_s in _steps(block)) > _LATE * task.seconds:
            break
    return assemble(task.workload, model, blocks, threads_per_rank, time.monotonic() - began, task.sharding)


def launches_of(seconds: float) -> int:
    """Number of launches that a profile of `seconds` is spread over."""
    return min(max(int(seconds / _LAUNCH_S), 1), _LAUNCHES)


def read_blocks(folder: Path, ranks: int) -> tuple[Model, list[list[Block]]]:
    """The model and the blocks of every rank."""
    lines = [list(complete_lines(folder / file_of(rank))) for rank in range(ranks)]
    if not lines[0]:
        raise WorkFailed(f"the profile ended before it began (see {folder}): try it again")
    model = msgspec.json.decode(lines[0].pop(0), type=Model)
    decode = msgspec.json.Decoder(Block).decode
    return model, [[decode(line) for line in of_rank] for of_rank in lines]


def assemble(
    workload: WorkloadSpec,
    model: Model,
    blocks: Sequence[Sequence[Block]],
    threads_per_rank: int,
    seconds: float,
    sharding: Sharding | None = None,
) -> ModelProfile:
    """The record that the blocks amount to; blocks are by rank, in the order in which they were made."""
    alone: dict[int, list[Block]] = {}
    for block in blocks[0]:
        if block.copies == 1 and not block.failed and not block.pair:
            alone.setdefault(block.batch, []).append(block)
    failed = [block for block in blocks[0] if block.failed and not block.pair]
    if not alone:
        why = f"a step with batch {failed[0].batch} ({failed[0].failed})" if failed else "any step"
        raise UsageError(f"{workload.model} cannot run {why}: try a smaller --batch, or a machine with more memory")
    steps_s = {batch: fmean(_by_launch(_best(made))) for batch, made in alone.items()}
    misses = misses_of(steps_s)
    order = _order([block for made in alone.values() for block in made])
    sizes = sorted(alone)
    errors = standard_errors([[block.step_s for block in _best(alone[batch])] for batch in sizes])
    spread = _launch_spread([_by_launch(_best(made)) for made in alone.values()]) if model.device == "cpu" else 0.0
    launches = len({block.launch for block in blocks[0]})
    ddp_s = [wrapped.step_s - bare.step_s for bare, wrapped in _pairs(blocks[0], "wrapped")]
    points = [
        # Blocks of one launch share what is special about it, blocks of several show it.
        _point(
            alone[batch],
            order,
            max(error, spread / math.sqrt(launches)) if launches > 1 else error,
            outlying=_is_outlying(batch, steps_s),
        )
        for batch, error in zip(sizes, errors or [_ERROR_OF_ONE] * len(sizes), strict=True)
    ]
    regular = [abs(misses[point.batch]) for point in points if point.batch in misses and not point.outlying]
    return ModelProfile(
        workload=workload,
        torch=model.torch,
        device=model.device,
        hostname=model.hostname,
        threads_per_rank=threads_per_rank,
        gradients=tuple(
            Gradient(name=model.names[at], bytes=model.bytes[at], element_bytes=model.element_bytes[at]) for at in order
        ),
        buffers_bytes=tuple(model.buffers_bytes),
        buffers=model.buffers,
        norm_channels=tuple(model.norm_channels),
        points=tuple(points),
        crowds=_contention(blocks, alone),
        interpolation_error=max(regular, default=0.0),
        memory_limit_bytes=model.memory_limit_bytes,
        too_large=min((block.batch for block in failed if block.copies == 1), default=None),
        seconds=seconds,
        launch_spread=spread,
        ddp_s=median(ddp_s) if ddp_s else None,
        sharded=_sharded_points(blocks[0], sharding.reshards) if sharding else (),
    )


def _best(made: Sequence[Block]) -> Sequence[Block]:
    """The blocks that no other program disturbed, or all when there are none; of many the first does not count.

    The first block of a batch size in a launch finds memory that its process has not used yet.
    """
    quiet = [block for block in made if block.foreign_cores <= QUIET] or list(made)
    firsts = {id(made[0])} | {id(b) for a, b in itertools.pairwise(made) if a.launch != b.launch} if made else set()
    counts = Counter(block.launch for block in quiet)
    return [block for block in quiet if id(block) not in firsts or counts[block.launch] <= _FEW]


def _by_launch(blocks: Sequence[Block]) -> list[float]:
    """The median step of every launch."""
    by_launch: dict[int, list[float]] = {}
    for block in blocks:
        by_launch.setdefault(block.launch, []).append(block.step_s)
    return [median(of_launch) for of_launch in by_launch.values()]


def _launch_spread(steps_s: Sequence[Sequence[float]]) -> float:
    """Relative standard deviation from launch to launch, by these launches of every batch size and the usual one.

    A launch is fast or slow with all batch sizes, so they count once, by the mean of their squares.
    """
    several = [[math.log(step_s) for step_s in of_batch] for of_batch in steps_s if len(of_batch) > 1]
    squares = fmean([sum((each - fmean(logs)) ** 2 for each in logs) for logs in several]) if several else 0.0
    freedom = max((len(logs) - 1 for logs in several), default=0)
    return math.sqrt((_USUAL_WEIGHT * USUAL_SPREAD**2 + squares) / (_USUAL_WEIGHT + freedom))


def _pairs(blocks: Sequence[Block], kind: Pair) -> list[tuple[Block, Block]]:
    """Blocks of the bare model, each with one of an engine that was made right before or after it."""
    found = []
    for one, other in itertools.pairwise([block for block in blocks if block.pair and not block.failed]):
        bare, engine = (one, other) if one.pair == "bare" else (other, one)
        alike = (one.launch, one.ranks, one.batch) == (other.launch, other.ranks, other.batch)
        if alike and (bare.pair, engine.pair) == ("bare", kind):
            found.append((bare, engine))
    return found


def _sharded_points(blocks: Sequence[Block], reshards: bool | None) -> tuple[ShardedPoint, ...]:
    """Costs of sharding in a step, by ranks and batch: medians over pairs of blocks."""
    of_place: dict[tuple[int, int], list[tuple[Block, Block]]] = {}
    for bare, sharded in _pairs(blocks, "sharded"):
        of_place.setdefault((sharded.ranks, sharded.batch), []).append((bare, sharded))
    points = []
    for (ranks, batch), pairs in sorted(of_place.items()):
        weighed = [sharded.memory_bytes - bare.memory_bytes for bare, sharded in pairs if sharded.memory_bytes]
        if not weighed:  # the launch that looks at memory did not come this far
            continue
        points.append(
            ShardedPoint(
                ranks=ranks,
                batch=batch,
                reshards=reshards,
                added_s=median(sharded.step_s - sharded.fill_s - bare.step_s for bare, sharded in pairs),
                added_bytes=round(median(weighed)),
            )
        )
    return tuple(points)


def _order(blocks: Sequence[Block]) -> list[int]:
    """Positions of parameters in the order in which backward finishes their gradients."""
    shares: dict[int, list[float]] = {}
    for block in blocks:
        for position, ready_s in block.ready_s.items():
            shares.setdefault(int(position), []).append(ready_s / block.step_s)
    return sorted(sorted(shares), key=lambda position: median(shares[position]))


def _is_outlying(batch: int, steps_s: Mapping[int, float]) -> bool:
    """True if a point misses and the others agree without it; at a bend they miss more without it."""
    misses = {size: abs(miss) for size, miss in misses_of(steps_s).items()}
    left = misses_of({size: step_s for size, step_s in steps_s.items() if size != batch})
    if batch not in misses or not left:
        return False
    grown = max(abs(miss) - misses[size] for size, miss in left.items())
    return misses[batch] > max(_OUTLYING, 2 * max(map(abs, left.values()))) and grown < _OUTLYING / 2


def _point(made: Sequence[Block], order: Sequence[int], error: float, *, outlying: bool) -> ProfilePoint:
    best = _best(made)
    steps = [step for block in best for step in _steps(block)]
    step_s = fmean(_by_launch(best))
    # The parts are scaled so that their medians add up to the median step.
    parts = [median(getattr(block, name)[i] for block in best for i in range(len(block.forward_s))) for name in _PARTS]
    scale = step_s / sum(parts)
    return ProfilePoint(
        batch=made[0].batch,
        step_s=step_s,
        forward_s=parts[0] * scale,
        backward_s=parts[1] * scale,
        optimizer_s=parts[2] * scale,
        ready_s=tuple(median(block.ready_s.get(str(at), block.step_s) for block in best) * scale for at in order),
        noise=relative_deviation(steps),
        error=error,
        cores_used=sum(sum(block.cpu_s) for block in best) / sum(steps),
        memory_bytes=round(median(block.memory_bytes for block in made)),
        steps=len(steps),
        remade=sum(block.foreign_cores > QUIET for block in made if block not in best),
        outlying=outlying,
        foreign_cores=median(block.foreign_cores for block in best),
        residuals=grouped([step / block.step_s for block in best for step in _steps(block)]),
    )


_PARTS = ("forward_s", "backward_s", "optimizer_s")


def _steps(block: Block) -> list[float]:
    return [sum(parts) for parts in zip(block.forward_s, block.backward_s, block.optimizer_s, strict=True)]


class _Round(NamedTuple):
    """Several ranks that stepped next to each other once, with as many copies and the same batch."""

    slowdown: float
    residuals: list[float]
    foreign_cores: float
    launch: int


def _contention(blocks: Sequence[Sequence[Block]], alone: Mapping[int, Sequence[Block]]) -> tuple[Contention, ...]:
    """Slowdowns of steps next to other ranks, by copies and batch.

    Rounds that other programs disturbed count only where there are no others.
    """
    rounds = {
        key: [each for each in made if each.foreign_cores <= QUIET] or made
        for key, made in sorted(_rounds_together(blocks, alone).items())
    }
    by_launch = [
        [median(each.slowdown for each in of) for _, of in itertools.groupby(made, lambda each: each.launch)]
        for made in rounds.values()
    ]
    # Rounds of one launch are alike, so what launches differ by counts where it is more.
    within = standard_errors([[each.slowdown for each in made] for made in rounds.values()])
    between = standard_errors(by_launch) or [0.0] * len(rounds)
    errors = map(max, within or [_ERROR_OF_ONE] * len(rounds), between)
    seen = dict(zip(rounds, zip(map(fmean, by_launch), errors, strict=True), strict=True))
    found = []
    for (copies, batch), made in rounds.items():
        slowdown, error = _pooled([seen[key] for key in seen if key[0] == copies], seen[copies, batch])
        residuals = [step for each in made for step in each.residuals]
        found.append(
            Contention(
                copies=copies,
                batch=batch,
                slowdown=slowdown,
                error=error,
                noise=relative_deviation(residuals),
                foreign_cores=median(each.foreign_cores for each in made),
                residuals=grouped(residuals),
            )
        )
    return tuple(found)


def _rounds_together(
    blocks: Sequence[Sequence[Block]], alone: Mapping[int, Sequence[Block]]
) -> dict[tuple[int, int], list[_Round]]:
    """Rounds by copies and batch: steps next to other ranks over the steps alone that were made right after them."""
    found: dict[tuple[int, int], list[_Round]] = {}
    others_left = [iter([block for block in of_rank if block.copies > 1]) for of_rank in blocks[1:]]
    for at, block in enumerate(blocks[0]):
        if block.copies == 1:
            continue
        others = [other for left in others_left[: block.copies - 1] if (other := next(left, None)) is not None]
        after = next((each for each in blocks[0][at + 1 :] if each.copies == 1 and not each.failed), None)
        if block.failed or after is None or after.batch != block.batch or any(each.failed for each in others):
            continue
        everyone = [block, *others]
        typical_s = median(step for each in everyone for step in _steps(each))
        of_launch = [each for each in alone.get(block.batch, ()) if each.launch == block.launch]
        alone_s = median(each.step_s for each in _best(of_launch) or [block])
        found.setdefault((block.copies, block.batch), []).append(
            _Round(
                # The block right after it has the same speed of the machine, all blocks of this batch have less noise.
                slowdown=typical_s / math.sqrt(after.step_s * alone_s),
                # Over what is typical of all ranks: one that is always slower holds the others up in every step.
                residuals=[step / typical_s for each in everyone for step in _steps(each)],
                foreign_cores=max(block.foreign_cores, after.foreign_cores),
                launch=block.launch,
            )
        )
    return found


def _pooled(of_copies: Sequence[tuple[float, float]], own: tuple[float, float]) -> tuple[float, float]:
    """One batch's slowdown and error after what the others with as many copies say.

    Batch sizes differ little in it (_BATCHES_DIFFER) and a round is noisy: what is less certain moves to their mean.
    """
    slowdown, error = own
    mean = fmean(math.log(each) for each, _ in of_copies)
    own_share = _BATCHES_DIFFER**2 / (_BATCHES_DIFFER**2 + error**2)
    pooled = math.exp(own_share * math.log(slowdown) + (1 - own_share) * mean)
    return pooled, error * math.sqrt(own_share + (1 - own_share) / len(of_copies))


def of_one_pass(workload: WorkloadSpec) -> WorkloadSpec:
    """The workload with one pass per step, as it is profiled: passes are alike."""
    return msgspec.structs.replace(workload, accumulate=1)


def check_profile(profile: ModelProfile, request: EstimateRequest) -> None:
    """The profile is of this model and of the torch that is here."""
    if profile.workload != of_one_pass(request.trained):
        given, found = request.trained.model, profile.workload.model
        other = (
            f"{found}, not of {given}"
            if given != found
            else f"{found} with other arguments, inputs, dtype or optimizer"
        )
        raise UsageError(f"{request.profile} is a profile of {other}: leave --profile out to take a new one")
    here = "" if request.step_time else torch_version()  # shares of a step carry over to another version
    if here and here.partition("+")[0] != profile.torch.partition("+")[0]:
        raise UsageError(
            f"{request.profile} was taken with torch {profile.torch} and here is {here}: "
            "leave --profile out to take a new one"
        )
