"""What an explanation says: in one sentence, and in words that terminal, tables and charts share."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from scalescope.records.explanation import Explanation, Finding, RankAccount
from scalescope.records.timeline import Breakdown
from scalescope.show.words import number
from scalescope.steady import step_times_by_number
from scalescope.text import listed, plain, plural
from scalescope.units import format_bytes, format_seconds, format_share


class Part(NamedTuple):
    """One part of a step."""

    key: str  # In the JSON document
    field: str  # Of a Breakdown
    name: str  # For people
    heading: str  # For narrow columns
    letter: str  # In a bar of letters
    colour: str


_EXPOSED = Part("exposed_communication", "exposed_s", "exposed communication", "exposed", "e", "#d55e00")
PARTS = (
    Part("compute", "compute_s", "compute", "compute", "c", "#3b87c0"),
    _EXPOSED,
    Part("input", "input_s", "input", "input", "i", "#999999"),
    Part("optimizer", "optimizer_s", "optimizer", "optim.", "o", "#3fae8a"),
    Part("other", "other_s", "other", "other", ".", "#d0d0d0"),
)  # They add up to the step
# What exposed communication consists of, where the source tells.
DIVIDED = (
    Part("waiting", "waiting_s", "waiting for other ranks", "waiting", "w", "#8a3b00"),
    Part("transfer", "transfer_s", "exposed transfer", "transfer", "t", "#d55e00"),
)
DARK = ("compute", "exposed_communication", "waiting", "transfer")  # Parts that need white letters
HIDDEN_COLOUR = "#f0b83c"
_MOST_LOST = 3  # Files that are named
_STEPS_FROM = {
    "marks": "the profiler's step marks",
    "optimizer": "Optimizer.step",
    "gradients": "the recurrence of gradient tensors",
}
_FEW = 6  # Ranks that are named one by one


def parts_shown(several: Sequence[Breakdown]) -> tuple[Part, ...]:
    """Parts that add up to each of these steps, with exposed communication divided where all of them tell."""
    told = [each for each in several if each.exposed_s is not None]
    if not told or any(each.waiting_s is None for each in told):
        return PARTS
    return tuple(shown for part in PARTS for shown in (DIVIDED if part is _EXPOSED else (part,)))


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
            for part in (*PARTS[:2], DIVIDED[0], *PARTS[2:])
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


def step_seconds(explanation: Explanation) -> dict[int, float]:
    """Seconds of every step, in their order."""
    steps = explanation.steps
    return step_times_by_number([step.index for step in steps], [step.parts.step_s for step in steps])


def by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """The largest gain first; unknown ones last."""
    return sorted(findings, key=lambda finding: (finding.gain is None, -(finding.gain or 0.0)))


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
    """`ddp over gloo on cpu`, `ddp with 42 alltoall over nccl on cuda`, `2,020 allreduce over nccl on cuda`."""
    others = [f"{explanation.collectives.get(name, 0):,} {plain(name, 16)}" for name in explanation.others[:_FEW]]
    counts = listed(others) if others else ""
    engine = {"none": "", "collectives": counts or "collectives"}.get(
        explanation.engine, plain(explanation.engine, 24) + (f" with {counts}" if counts else "")
    )
    over = f"over {plain(explanation.backend, 24)}" if explanation.backend else ""
    return " ".join(filter(None, (engine, over, f"on {explanation.device}")))


def loss_words(explanation: Explanation) -> str:
    """What could not be read; empty when everything was."""
    lost = explanation.lost
    counts = [plural(lost.events, "event")] if lost.events else []
    counts += [format_bytes(lost.bytes)] if lost.bytes else []
    inside = ": ".join(filter(None, (" and ".join(counts), plain(lost.reason, 200))))
    files = [plain(each, 200) for each in lost.files[:_MOST_LOST]]
    if more := len(lost.files) - len(files):
        files.append(f"and {plural(more, 'more file')}")
    words = "; ".join(filter(None, (*files, inside)))
    return f"not read: {words}" if words else ""


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
_CLEAR_GAIN = 0.2  # From here on one digit after the point says enough


def sentence(explanation: Explanation) -> str:
    """The answer: where a step goes, and what to change first."""
    parts = explanation.accounting
    if parts is None:
        return f"{plain(explanation.what, 60)} has no steps, so nothing can be said about where their time goes."
    known = shares(parts)
    names = {part.key: _NAMES.get(part.key, part.name) for part in PARTS}
    if len(known) <= 2:
        names["other"] = f"what a {explanation.kind} alone cannot tell"
    if explanation.too_heavy and parts.compute_s is None:
        heavy = f"tracing made steps {format_share(explanation.overhead or 0.0)} longer, too much to tell these apart"
        names["other"] = f"forward, backward and communication ({heavy})"
    told = [f"{format_share(known[key])} {names[key]}{_divided(key, explanation, parts)}" for key in _order(known)]
    step = explanation.step_s if explanation.step_s is not None else parts.step_s
    traced = "" if explanation.traced_step_s is not None else "traced "
    return (
        f"A {traced}{format_seconds(step)} step is {listed(told)}{_hidden(explanation, parts)}. {_advice(explanation)}."
    )


def _divided(key: str, explanation: Explanation, parts: Breakdown) -> str:
    """` (12 % transfer; rank 0 waits 22 % for rank 1)`, where the source tells."""
    if key != _EXPOSED.key or parts.waiting_s is None or parts.transfer_s is None:
        return ""
    transfer = f"{format_share(share(parts.transfer_s, parts))} transfer"
    late = explanation.straggler
    others = [each for each in explanation.per_rank if each.rank != late and each.parts.waiting_s is not None]
    if late is None or not others:
        return f" ({format_share(share(parts.waiting_s, parts))} waiting for other ranks, {transfer})"
    waits = format_share(fmean(share(each.parts.waiting_s or 0.0, each.parts) for each in others))
    who = f"rank {others[0].rank} waits" if len(others) == 1 else "other ranks wait"
    return f" ({transfer}; {who} {waits} for rank {late})"


def _order(known: dict[str, float]) -> list[str]:
    """Parts that can be seen, as they follow each other everywhere."""
    return [key for key, fraction in known.items() if fraction >= _VISIBLE] or list(known)[:1]


def _hidden(explanation: Explanation, parts: Breakdown) -> str:
    if parts.hidden_s is not None and share(parts.hidden_s, parts) >= _VISIBLE:
        return f" (communication hidden under compute: {format_share(share(parts.hidden_s, parts))})"
    possibly = explanation.possibly_hidden_s
    if possibly is not None and share(possibly, parts) >= _VISIBLE:
        return f" (communication that may be hidden: {format_share(share(possibly, parts))})"
    return ""


def _advice(explanation: Explanation) -> str:
    findings = by_gain(explanation.findings)
    if not findings:
        return "Nothing stands out"
    first = findings[0]
    saved = saved_words(first, explanation.step_s)
    return plain(first.sentence, 200).removesuffix(".") + (f"; {saved}" if saved else "")


def saved_words(finding: Finding, step_s: float | None) -> str:
    """`fix saves 21 ms per step (1.8x)`; a guess is called one, and what has no gain says nothing."""
    if finding.gain is None:
        return ""
    times = f"{1 + finding.gain:.{1 if finding.gain >= _CLEAR_GAIN else 2}f}x"
    guess = ", a guess" if finding.gain_from == "guess" else ""
    if step_s is None:
        return f"fix makes steps {times} faster{guess}"
    return f"fix saves {format_seconds(step_s * finding.gain / (1 + finding.gain))} per step ({times}{guess})"


def tracing_words(explanation: Explanation) -> str:
    """A warning that tracing cost too much to tell shares; empty: it did not."""
    if not explanation.too_heavy:
        return ""
    return (
        f"tracing made steps {format_share(explanation.overhead or 0.0)} longer: shares are those of untraced steps, "
        "and what these do not show is left out; to see it, capture longer steps (a larger batch)"
    )
