"""Explanations made by hand: what tables, charts and the terminal are tried on."""

import random
from statistics import fmean, median

import msgspec
from made_steps import MIB, ddp_step, horovod_step

from breakdowns import break_down
from scalescope.records.explanation import (
    Change,
    Clock,
    Epoch,
    Explanation,
    Finding,
    HorovodAccount,
    Loss,
    Period,
    RankAccount,
    StepAccount,
    TensorAccount,
    Transfer,
)
from scalescope.records.timeline import Breakdown

ESCAPES = "\x1b]0;owned\x07\x1b[31mred\x1b[0m [bold]loud[/bold] \u202e<script>alert(1)</script> | =1+1"
_FIELDS = ("step_s", "compute_s", "exposed_s", "hidden_s", "input_s", "optimizer_s", "other_s", "waiting_s")


def ddp(ranks: int = 2, steps: int = 60, *, straggler: int | None = 1, what: str = "train.py") -> Explanation:
    """Profiler traces of DDP over gloo in which one rank sleeps 20 ms a step; every fiftieth step writes a file."""
    guilty = straggler if straggler is not None and straggler < ranks else None
    shown = ddp_step(ranks, guilty)
    each = {step.rank: break_down(shown, step) for step in shown.steps}
    if ranks > 1:
        each = {rank: _waiting(parts, 0.018 if guilty not in (None, rank) else 0.0) for rank, parts in each.items()}
    accounts = _steps(each, steps, warmup=3)
    per_rank = tuple(_typical(rank, accounts, 3, late_s=0.02 if rank == guilty else 0.0002) for rank in range(ranks))
    findings = () if guilty is None else (_straggler_finding(guilty), _bucket_finding())
    return Explanation(
        kind="profiler traces",
        what=what,
        files=tuple(f"traces/rank{rank}.json" for rank in range(ranks)),
        ranks=tuple(range(ranks)),
        world_size=ranks,
        engine="ddp",
        backend="gloo",
        device="cpu",
        steps_from="marks",
        warmup_steps=3,
        step_s=median(account.parts.step_s for account in accounts if account.rank == (guilty or 0)),
        accounting=_mean([account.parts for account in per_rank]),
        per_rank=per_rank,
        steps=accounts,
        transfers=ddp_transfers(ranks) if ranks > 1 else (),
        bucket_bytes=(MIB, 25 * MIB, 9 * MIB),
        clocks=tuple(
            Clock(rank=rank, offset_s=0.31 * rank, drift=1e-6 * rank, residual_s=7e-5 + 1e-6 * rank, pairs=3 * steps)
            for rank in range(1, ranks)
        ),
        straggler=guilty,
        straggler_note="" if guilty is not None else "ranks differ by less than their noise",
        changes=(Change(step=steps // 2, before_s=0.094, after_s=0.107),) if steps > 40 else (),
        periods=(Period(every=50, excess_s=0.06, count=steps // 50),) if steps > 100 else (),
        overhead=0.14,
        shown_step=shown,
        shown_index=steps // 2,
        findings=findings,
    )


def _waiting(parts: Breakdown, seconds: float) -> Breakdown:
    return msgspec.structs.replace(parts, waiting_s=min(seconds, parts.exposed_s or 0.0))


def ddp_transfers(ranks: int) -> tuple[Transfer, ...]:
    """One size per bucket, some odd ones, and the probe beside most of them."""
    found = []
    for operation, size, count, speed in (
        ("allreduce", MIB, 60, 0.4e9),
        ("allreduce", 9 * MIB, 60, 0.9e9),
        ("allreduce", 25 * MIB, 60, 1.1e9),
        ("allreduce", 4096, 120, 0.01e9),
        ("broadcast", 2 * MIB, 1, 0.7e9),
        ("broadcast", 512, 60, 0.002e9),
        ("allgather", 8, 2, 2e4),
    ):
        factor = 2 * (ranks - 1) / ranks if operation == "allreduce" else 1.0
        found.append(
            Transfer(
                operation=operation,
                bytes=size,
                ranks=ranks,
                count=count,
                seconds=size / speed,
                wait_s=0.0194,
                algorithm_bytes_per_s=speed,
                bus_bytes_per_s=speed * factor,
                probed_s=0.8 * size / speed if operation == "allreduce" else None,
            )
        )
    return tuple(found)


def bare_horovod(steps: int = 60, *, name: str = "layer", ticks: bool = False) -> Explanation:
    """One timeline of rank 0: nothing is known but what was exchanged, and what of it nothing can hide."""
    parts = Breakdown(
        step_s=0.050,
        compute_s=None,
        exposed_s=0.009,
        hidden_s=None,
        input_s=None,
        optimizer_s=None,
        other_s=0.041,
        waiting_s=0.002,
    )
    accounts = _steps({0: parts}, steps, warmup=1)
    typical = _typical(0, accounts, 1)
    return Explanation(
        kind="horovod timeline",
        what="timeline.json",
        files=("timeline.json",),
        ranks=(0,),
        world_size=None,
        engine="horovod",
        backend="gloo",
        device="cpu",
        steps_from="gradients",
        warmup_steps=1,
        step_s=0.050,
        accounting=typical.parts,
        possibly_hidden_s=0.006,
        per_rank=(typical,),
        steps=accounts,
        transfers=(
            Transfer(
                operation="allreduce",
                bytes=12 * MIB,
                ranks=2,
                count=180,
                seconds=0.004,
                algorithm_bytes_per_s=3.1e9,
                bus_bytes_per_s=3.1e9,
            ),
        ),
        horovod=_horovod(name, ticks=ticks),
        straggler_note="rank unknown: cached negotiation",
        epochs=(
            Epoch(number=1, steps=20, seconds=14.2, negotiation_share=0.41, exposed_share=0.44),
            Epoch(number=2, steps=20, seconds=5.1, negotiation_share=0.06, exposed_share=0.18),
            Epoch(number=3, steps=20, seconds=5.0, negotiation_share=0.05, exposed_share=0.18),
        ),
        shown_step=horovod_step(name),
        shown_index=30,
        lost=Loss(events=3, bytes=1234, reason="the file ends within an event"),
        notes=("The timeline itself slows small steps on a CPU by 14 to 30 %.",),
    )


def compared() -> Explanation:
    """Two ranks with a prediction above the measured step."""
    both = ddp_step(2, None, "predicted", fast=0.9)
    own = tuple(span for span in both.spans if span.rank == 0)
    predicted = msgspec.structs.replace(both, spans=own, steps=both.steps[:1])
    return msgspec.structs.replace(ddp(2), predicted_step=predicted)


def nasty() -> Explanation:
    """A user who means harm named everything."""
    long = ESCAPES + " module." * 60
    base = bare_horovod(name=long, ticks=True)
    finding = Finding(id="x", sentence=ESCAPES, evidence={ESCAPES: long}, change=ESCAPES, gain=0.3, gain_from="replay")
    transfers = tuple(msgspec.structs.replace(each, operation=long) for each in base.transfers)
    return msgspec.structs.replace(
        base,
        what=ESCAPES,
        files=(f"{long}.json",) * 30,
        backend=ESCAPES,
        transfers=transfers,
        straggler_note=ESCAPES,
        notes=(ESCAPES,),
        lost=Loss(events=1, bytes=1, reason=ESCAPES),
        findings=(finding,),
    )


def without_steps() -> Explanation:
    """A trace of a few operations in which nothing comes back."""
    return Explanation(
        kind="profiler traces",
        what="ops.json",
        files=("ops.json",),
        ranks=(0,),
        world_size=2,
        engine="ddp",
        backend="gloo",
        device="cpu",
        steps_from="none",
        warmup_steps=0,
        step_s=None,
        accounting=None,
        notes=("There are neither step marks nor Optimizer.step in ops.json.",),
    )


def _horovod(name: str, *, ticks: bool) -> HorovodAccount:
    return HorovodAccount(
        negotiation_s=0.0061,
        waiting_s=0.0052 if ticks else None,
        protocol_s=0.0009 if ticks else None,
        queue_s=0.0013,
        data_wait_s=0.0,
        memcpy_in_s=0.0011,
        memcpy_out_s=0.0010,
        collectives_s={"GLOO_ALLREDUCE": 0.0073, "GLOO_BCAST": 0.0002},
        responses=3.0,
        tensors_per_response=5.3,
        bytes_per_response=12.0 * MIB,
        cycles=51.0,
        idle_cycles=47.5,
        cached=not ticks,
        last_rank={1: 58, 0: 2} if ticks else {},
        first_negotiation_s=0.9,
        tensors=tuple(
            TensorAccount(
                name=f"{name}.{index}.weight",
                operation="allreduce",
                bytes=(index + 1) * MIB,
                count=60,
                negotiation_s=0.004,
                queue_s=0.0003,
                data_wait_s=0.0,
                memcpy_s=0.0004,
                collective_s=0.002 + 0.0001 * index,
            )
            for index in range(16)
        ),
    )


def _straggler_finding(rank: int) -> Finding:
    return Finding(
        id="straggler",
        sentence=f"Rank {rank} comes 19.8 ms later to the allreduces than the others, in 57 of 57 steps.",
        evidence={"late": "19.8 ms (median)", "wait of the others": "19.4 ms a step", "file": f"rank{rank}.json"},
        change=f"Give rank {rank} less work or a free core; see what else runs on its host.",
        gain=0.236,
        gain_from="replay",
    )


def _bucket_finding() -> Finding:
    return Finding(
        id="one bucket too large",
        sentence="The last bucket of 9 MiB is sent after the backward pass has ended.",
        evidence={"exposed": "9 ms of 104 ms"},
        change="DistributedDataParallel(model, bucket_cap_mb=4)",
        gain=0.041,
        gain_from="replay",
    )


def _steps(each: dict[int, Breakdown], count: int, warmup: int) -> tuple[StepAccount, ...]:
    """Steps with noise, slow at first, 12 % slower from the middle on, and every fiftieth 60 ms slower."""
    noise = random.Random(5)
    found = []
    begin = 0.0
    for index in range(count):
        factor = noise.uniform(0.97, 1.03) * (1.12 if index >= count / 2 else 1.0) * (9.0 if index == 0 else 1.0)
        factor *= 1.8 if 0 < index < warmup else 1.0
        extra = 0.06 if index % 50 == 49 else 0.0
        for rank, parts in each.items():
            own = factor * noise.uniform(0.98, 1.02)
            scaled = {name: None if (old := getattr(parts, name)) is None else own * old for name in _FIELDS}
            scaled["other_s"] = (scaled["other_s"] or 0.0) + extra
            scaled["step_s"] = (scaled["step_s"] or 0.0) + extra
            account = msgspec.convert(scaled, Breakdown)
            found.append(StepAccount(rank=rank, index=index, start_s=begin, parts=account))
        begin += 0.1 * factor
    return tuple(found)


def _typical(rank: int, accounts: tuple[StepAccount, ...], warmup: int, late_s: float | None = None) -> RankAccount:
    steady = [account.parts for account in accounts if account.rank == rank and account.index >= warmup]
    return RankAccount(rank=rank, steps=len(steady), parts=_mean(steady), late_s=late_s)


def _mean(parts: list[Breakdown]) -> Breakdown:
    means = {}
    for name in _FIELDS:
        values = [value for each in parts if (value := getattr(each, name)) is not None]
        means[name] = fmean(values) if values else None
    return msgspec.convert(means, Breakdown)
