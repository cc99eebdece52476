"""What an explanation says: in one sentence, and in words that terminal, tables and charts share."""

from collections.abc import Sequence
from typing import NamedTuple

from scalescope.records.explanation import Explanation, Finding, HorovodAccount, RankAccount, TensorAccount
from scalescope.records.timeline import Breakdown
from scalescope.report.phrases import number
from scalescope.report.terminal import cut_rows
from scalescope.text import plain, plural
from scalescope.units import format_bytes, format_seconds


class Part(NamedTuple):
    """One part of a step."""

    key: str  # In the JSON document
    field: str  # Of a Breakdown
    name: str  # For people
    heading: str  # For narrow columns
    letter: str  # In a bar of letters
    colour: str


PARTS = (
    Part("compute", "compute_s", "compute", "compute", "c", "#3b87c0"),
    Part("exposed_communication", "exposed_s", "exposed communication", "exposed", "e", "#d55e00"),
    Part("input", "input_s", "input", "input", "i", "#999999"),
    Part("optimizer", "optimizer_s", "optimizer", "optim.", "o", "#3fae8a"),
    Part("other", "other_s", "other", "other", ".", "#d0d0d0"),
)  # They add up to the step
HIDDEN_COLOUR = "#f0b83c"
_STEPS_FROM = {
    "marks": "the profiler's step marks",
    "optimizer": "Optimizer.step",
    "gradients": "the recurrence of gradient tensors",
}
_FEW = 6  # Ranks that are named one by one


def seconds_of(part: Part, parts: Breakdown) -> float | None:
    """How long a part takes; None where the source cannot tell. A rounding error below zero is zero."""
    seconds: float | None = getattr(parts, part.field)
    return None if seconds is None else 0.0 if -1e-6 < seconds < 0 else seconds


def share(seconds: float, parts: Breakdown) -> float:
    """As a fraction of the step."""
    return seconds / parts.step_s if parts.step_s > 0 else 0.0


def shares(parts: Breakdown) -> dict[str, float]:
    """Fractions of the step by key; what the source cannot separate is absent."""
    known = {part.key: seconds_of(part, parts) for part in PARTS}
    return {key: share(seconds, parts) for key, seconds in known.items() if seconds is not None}


def accounting_columns(
    rows: Sequence[tuple[str, Breakdown, RankAccount | None]], *, short: bool = False
) -> dict[str, list[str]]:
    """Named steps as percentages of each part, by heading; columns that nothing is known for are left out."""

    def percents(seconds: Sequence[float | None]) -> list[str]:
        known = zip(seconds, rows, strict=True)
        return ["" if each is None else number(100 * share(each, row[1]), 1) for each, row in known]

    late = [account.late_s if account else None for _, _, account in rows]
    columns = {
        "" if short else "rank": [name for name, _, _ in rows],
        "step": [format_seconds(parts.step_s) for _, parts, _ in rows],
        **{
            part.heading if short else f"{part.name} (%)": percents([seconds_of(part, parts) for _, parts, _ in rows])
            for part in PARTS
        },
        "hidden" if short else "hidden communication (%)": percents([parts.hidden_s for _, parts, _ in rows]),
        "late": ["" if each is None else format_seconds(each) for each in late],
    }
    return {heading: [cell or "-" for cell in cells] for heading, cells in columns.items() if any(cells)}


def step_count(explanation: Explanation) -> int:
    """How many steps were seen, warm-up among them."""
    if explanation.steps:
        return len({step.index for step in explanation.steps})
    return max((account.steps for account in explanation.per_rank), default=0)


def first_steady(explanation: Explanation) -> int:
    """Number of the first step after the warm-up."""
    indices = sorted({step.index for step in explanation.steps})
    if not indices:
        return explanation.warmup_steps
    return indices[explanation.warmup_steps] if explanation.warmup_steps < len(indices) else indices[-1] + 1


def slowest_steps(explanation: Explanation) -> dict[int, float]:
    """Seconds of the slowest rank by step, in their order."""
    longest: dict[int, float] = {}
    for step in explanation.steps:
        longest[step.index] = max(step.parts.step_s, longest.get(step.index, 0.0))
    return dict(sorted(longest.items()))


def by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """The largest gain first; unknown ones last."""
    return sorted(findings, key=lambda finding: (finding.gain is None, -(finding.gain or 0.0)))


def gain_words(gain: float) -> str:
    """`1.24x`: by how much a step would be faster."""
    return f"{1 + gain:.2f}x" if gain < 9 else f"{1 + gain:.0f}x"


def percent(fraction: float) -> str:
    """`18 %`; a tenth only where there is less than one."""
    return f"{100 * fraction:.1f} %" if 0 < abs(fraction) < 0.0095 else f"{100 * fraction:.0f} %"


def steps_from_words(explanation: Explanation) -> str:
    """Where steps came from; empty without any."""
    told = explanation.steps_from
    return "" if told in ("none", "") else _STEPS_FROM.get(told, plain(told, 100))


def rank_words(explanation: Explanation) -> str:
    """`16 of 16 ranks`, `rank 0 of 2`, `ranks 0, 1, 5 of 8`."""
    ranks, size = explanation.ranks, explanation.world_size
    if size is not None and len(ranks) == size > 1:
        return f"{size:,} of {size:,} ranks"
    of = f" of {size:,}" if size is not None else ""
    if len(ranks) <= _FEW:
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}{of}"
    return f"{plural(len(ranks), 'rank')}{of}"


def engine_words(explanation: Explanation) -> str:
    """`ddp over gloo on cpu`."""
    engine = "" if explanation.engine == "none" else explanation.engine
    over = f"over {plain(explanation.backend, 24)}" if explanation.backend else ""
    return " ".join(filter(None, (engine, over, f"on {explanation.device}")))


def loss_words(explanation: Explanation) -> str:
    """What could not be read; empty when everything was."""
    lost = explanation.lost
    if not (lost.events or lost.bytes or lost.reason):
        return ""
    counts = [plural(lost.events, "event")] if lost.events else []
    counts += [format_bytes(lost.bytes)] if lost.bytes else []
    why = plain(lost.reason, 200)
    return "not read: " + ": ".join(filter(None, (" and ".join(counts), why)))


def straggler_words(explanation: Explanation) -> str:
    """Who is late, or why nobody is named; empty where there is nothing to say."""
    note = plain(explanation.straggler_note, 200)
    if explanation.straggler is None:
        return f"straggler: {note}" if note else ""
    own = [account.late_s for account in explanation.per_rank if account.rank == explanation.straggler]
    if explanation.horovod and explanation.straggler in explanation.horovod.late_s:
        own = [explanation.horovod.late_s[explanation.straggler]]
    late = f"{1e3 * own[0]:,.3g} ms later to collectives than the first" if own and own[0] else ""
    told = f"rank {explanation.straggler} is the straggler"
    return "; ".join(filter(None, (f"{told}: it comes {late}" if late else told, note)))


_NAMES = {"input": "waiting for input"}
_VISIBLE = 0.005  # Parts below it would read 0 %


def sentence(explanation: Explanation) -> str:
    """The answer: where a step goes, and what to change first."""
    parts = explanation.accounting
    if parts is None:
        return f"{plain(explanation.what, 60)} has no steps, so nothing can be said about where their time goes."
    known = shares(parts)
    names = {part.key: _NAMES.get(part.key, part.name) for part in PARTS}
    if len(known) <= 2:
        names["other"] = f"what a {explanation.kind} alone cannot tell"
    told = [f"{percent(known[key])} {names[key]}" for key in _order(known)]
    step = explanation.step_s if explanation.step_s is not None else parts.step_s
    return f"A {format_seconds(step)} step is {_listed(told)}{_hidden(explanation, parts)}. {_advice(explanation)}."


def _order(known: dict[str, float]) -> list[str]:
    """Parts that can be seen, as they follow each other everywhere."""
    return [key for key, fraction in known.items() if fraction >= _VISIBLE] or list(known)[:1]


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _hidden(explanation: Explanation, parts: Breakdown) -> str:
    if parts.hidden_s is not None and share(parts.hidden_s, parts) >= _VISIBLE:
        return f" (communication hidden under compute: {percent(share(parts.hidden_s, parts))})"
    possibly = explanation.possibly_hidden_s
    if possibly is not None and share(possibly, parts) >= _VISIBLE:
        return f" (communication that may be hidden: {percent(share(possibly, parts))})"
    return ""


def _advice(explanation: Explanation) -> str:
    findings = by_gain(explanation.findings)
    if not findings:
        return "Nothing stands out"
    first = findings[0]
    said = plain(first.sentence, 200).removesuffix(".")
    return said if first.gain is None else f"{said}: {gain_words(first.gain)} faster steps without it"


_MOST_TENSORS, _MOST_COLLECTIVES, _MOST_RANKS = 4, 5, 4


def horovod_lines(explanation: Explanation) -> list[str]:
    """Negotiation, queue and copies, collectives, fusion, cycles: a line each; none without Horovod."""
    account = explanation.horovod
    if account is None:
        return []
    return [_negotiation(account), _around(account), _collectives(account), _fusion(account), *_last_rank(account)]


def _negotiation(account: HorovodAccount) -> str:
    whole = f"negotiation {format_seconds(account.negotiation_s)}"
    if account.waiting_s is not None and account.protocol_s is not None:
        waiting, protocol = format_seconds(account.waiting_s), format_seconds(account.protocol_s)
        whole += f": {waiting} until the last rank was ready, {protocol} of protocol"
    elif account.cached:
        whole += " (cached: who was waited for is not told)"
    return f"{whole}; {format_seconds(account.first_negotiation_s)} in the first step"


def _around(account: HorovodAccount) -> str:
    told = {
        "queue": account.queue_s,
        "wait for data": account.data_wait_s,
        "copy into the fusion buffer": account.memcpy_in_s,
        "out of it": account.memcpy_out_s,
    }
    return ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in told.items())


def _collectives(account: HorovodAccount) -> str:
    """By backend, the longest first."""
    order = sorted(account.collectives_s.items(), key=lambda item: -item[1])
    told = [f"{plain(name, 30)} {format_seconds(seconds)}" for name, seconds in order[:_MOST_COLLECTIVES]]
    more = [f"{len(order) - _MOST_COLLECTIVES:,} more"] if len(order) > _MOST_COLLECTIVES else []
    return f"collectives: {', '.join([*told, *more]) or 'none'}"


def _fusion(account: HorovodAccount) -> str:
    size = "" if account.bytes_per_response is None else f" and {format_bytes(account.bytes_per_response)}"
    fused = f"{account.responses:.3g} messages of {account.tensors_per_response:.3g} tensors{size} each"
    if account.cycles is None:
        return fused
    idle = "" if account.idle_cycles is None else f", {account.idle_cycles:.3g} of them without work"
    return f"{fused}; {account.cycles:.3g} cycles{idle}"


def _last_rank(account: HorovodAccount) -> list[str]:
    counts = sorted(account.last_rank.items(), key=lambda item: -item[1])
    whole = sum(account.last_rank.values())
    if not whole:
        return []
    told = [f"rank {rank} {count:,} times" for rank, count in counts[:_MOST_RANKS]]
    return [f"last to be ready in {whole:,} negotiations: {', '.join(told)}"]


def tensor_rows(explanation: Explanation) -> list[list[str]]:
    """The tensors that take longest, heading first; medians per operation."""
    account = explanation.horovod
    if account is None:
        return []
    order = sorted(account.tensors, key=lambda tensor: -tensor.count * _seconds(tensor))
    columns = [
        ("tensor", [plain(tensor.name, 24) for tensor in order]),
        ("size", ["" if tensor.bytes is None else format_bytes(tensor.bytes) for tensor in order]),
        ("count", [f"{tensor.count:,}" for tensor in order]),
        ("negot.", [format_seconds(tensor.negotiation_s) for tensor in order]),
        ("queue", [format_seconds(tensor.queue_s) for tensor in order]),
        ("data", [format_seconds(tensor.data_wait_s) for tensor in order]),
        ("memcpy", [format_seconds(tensor.memcpy_s) for tensor in order]),
        ("collect.", [format_seconds(tensor.collective_s) for tensor in order]),
    ]
    return cut_rows(columns, _MOST_TENSORS, "tensor")


def _seconds(tensor: TensorAccount) -> float:
    return tensor.negotiation_s + tensor.queue_s + tensor.data_wait_s + tensor.memcpy_s + tensor.collective_s
