"""Explanation: where the time of traced steps goes and what to change; every rank, transfer and tensor as tables."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

import msgspec

from scalescope.engines import COLLECTIVES
from scalescope.records.explanation import ExchangeAccount, Explanation, Finding, HorovodAccount, Network, RankAccount
from scalescope.records.job import NO_ENGINE
from scalescope.records.timeline import EXPOSED, HIDDEN, PARTS, TRANSFER, WAITING, Breakdown, Part, parts_of
from scalescope.show.document import Bar, Column, Document, Item, Section, Table, charted
from scalescope.show.words import capital, number
from scalescope.steady import step_times_by_number
from scalescope.text import listed, plain, plural
from scalescope.units import format_bits, format_bytes, format_rate, format_seconds, format_share

MOST_RANKS = 64  # In a table or a figure
_FEW = 6  # Ranks and operations that are named one by one
_MOST_FILES, _MOST_LINES, _MOST_ROWS = 3, 4, 8  # Names of files, changes and other facts, rows of long tables
_VISIBLE = 0.005  # Parts below it would read 0 %
_CLEAR_GAIN = 0.2  # From here on one digit after the point says enough
_WORTH_A_LINE = 1.2  # A first step shorter than this many steady ones is not reported
_MEAN_IS_APART = 0.03  # Of the median step, from which on the answer names both: shares are of the mean
_NOISE = 0.02  # An overhead below this is within the noise
_STEPS_FROM = {
    "marks": "the profiler's step marks",
    "optimizer": "Optimizer.step",
    "gradients": "the recurrence of gradient tensors",
}
_GAIN_FROM = {"replay": "the step replayed without it", "accounting": "the accounting", "guess": "a guess: half of it"}


def document(explanation: Explanation) -> Document:
    """Describe where a step goes and what to change first; then what every rank, Horovod and the transfers did."""
    findings, whole, horovod = by_gain(explanation.findings), explanation.accounting, explanation.horovod
    others = [_with_gain(each, explanation) for each in findings[1:]]
    changes, ranks = _over_time(explanation), _rank_lines(explanation)
    notes = [plain(note, 300) for note in explanation.notes]
    tables = [_accounting(explanation, whole, notes)] if whole else []
    nothing = "nothing that is known to cost time was found" if whole else "there are no steps"
    tracing = (
        f"tracing made steps {format_share(explanation.overhead or 0.0)} longer: shares are those of untraced steps, "
        "and what these do not show is left out; to see it, capture longer steps (a larger batch)"
        if explanation.too_heavy
        else ""
    )
    return Document(
        answer=sentence(explanation),
        why=[*others, *changes, *ranks, *notes] if whole else [_traced(explanation), *notes],
        do=plain(findings[0].change, 300) if findings else "",
        warnings=[words for words in (_loss_words(explanation), tracing) if words],
        brief=[_bar_alone(table, explanation) for table in tables],
        sections=charted(
            "explanation",
            [
                Section("traces", "What was read", facts=[*_reading(explanation), *([] if whole else notes)]),
                Section("step", "One step of all ranks"),
                Section("accounting", "Where a steady step goes", tables=tables),
                Section(
                    "horovod",
                    "Horovod, per step",
                    facts=_horovod_lines(horovod) if horovod else [],
                    tables=[_tensors(horovod)] if horovod else [],
                ),
                Section("exchanges", "Collectives of a step, by pass", tables=_exchanges(explanation)),
                Section("transfers", "Transfers, those that take most first", tables=[_transfers(explanation)]),
                Section("ranks", "Ranks", facts=ranks),
                Section("network", "Network", facts=network_lines(explanation.network)),
                Section("over_time", "Over time", facts=changes, tables=[_epochs(explanation)]),
                Section(
                    "findings",
                    "What to change, the largest gain first" if findings else "What to change",
                    lines=[] if findings else [f"Nothing stands out: {nothing}."],
                    items=[_item(each, explanation) for each in findings],
                ),
            ],
            explanation,
        ),
        json=lambda: _json(explanation),
        files={"explanation": _every_step(explanation)},
    )


def sentence(explanation: Explanation) -> str:
    """The answer: the finding with the largest gain, and where a step goes."""
    parts, findings = explanation.accounting, by_gain(explanation.findings)
    if parts is None and explanation.network and not explanation.ranks:
        advice = f" {plain(findings[0].sentence, 300)}" if findings else ""
        return f"{plain(network_lines(explanation.network)[0], 200)}.{advice}"
    if parts is None:
        return f"{plain(explanation.what, 60)} has no steps, so nothing can be said about where their time goes."
    shares = {part: share for part in PARTS if (share := part.share(parts)) is not None}
    names = {"input": "waiting for input"}
    if len(shares) <= 2:
        names["other"] = f"unknown (a {explanation.kind} alone does not tell it)"
    if explanation.too_heavy and parts.compute_s is None:
        names["other"] = "forward, backward and communication"
    told = [
        f"{format_share(share)} {names.get(part.key, part.name)}"
        + (_divided(explanation, parts) if part is EXPOSED else "")
        for part, share in shares.items()
        if share >= _VISIBLE or share == max(shares.values())
    ]
    hidden, possibly = HIDDEN.share(parts) or 0.0, (explanation.possibly_hidden_s or 0.0) / (parts.step_s or 1.0)
    under = ""
    if max(hidden, possibly) >= _VISIBLE:
        name = "hidden under compute" if hidden >= _VISIBLE else "that may be hidden"
        under = f" (communication {name}: {format_share(hidden if hidden >= _VISIBLE else possibly)})"
    step = explanation.step_s if explanation.step_s is not None else parts.step_s
    traced = "" if explanation.traced_step_s is not None else "traced "
    mean = f" ({format_seconds(parts.step_s)} in the mean)" if abs(parts.step_s / step - 1) >= _MEAN_IS_APART else ""
    goes = f"A {traced}{format_seconds(step)} step{mean} is {listed(told)}{under}."
    return f"{_with_gain(findings[0], explanation)}. {goes}" if findings else f"{goes} Nothing stands out."


def network_lines(network: Network | None) -> list[str]:
    """Lines on the network that messages used, the other links, and the settings that choose between them."""
    if network is None:
        return []
    over = {"socket": "sockets", "tcp": "TCP", "": "an unknown network"}
    told = [
        f"{plain(network.backend, 24).replace('nccl', 'NCCL')} over "
        + over.get(network.transport.lower(), plain(network.transport, 30)),
        *([f"on {', '.join(plain(name, 30) for name in network.interfaces[:_FEW])}"] if network.interfaces else []),
    ]
    more = {
        f"{network.channels} channels": network.channels,
        f"algorithms {', '.join(network.algorithms)}": network.algorithms,
        plural(network.nodes or 0, "node"): network.nodes,
    }
    known = "; ".join(words for words, there in more.items() if there)
    lines = [" ".join([*told, *([f"({known})"] if known else [])])]
    for link in network.links:
        source = "measured" if link.measured_bits_per_s else "declared"
        rate = f"{format_bits(link.bits_per_s)} {source}" if link.bits_per_s else "speed not known"
        lines.append(f"{plain(link.interface, 30)} ({plain(link.network, 40)}): {rate}")
    ports = ", ".join(f"{plain(each.name, 30)} ({plain(each.kind, 8)})" for each in network.devices[:_FEW])
    texts = [f"{plain(name, 40)}={plain(value, 60)}" for name, value in sorted(network.settings.items())]
    named = {"ports": ports, "set": ", ".join(texts[:_MOST_ROWS])}
    return [*lines, *(f"{name}: {words}" for name, words in named.items() if words)]


def _divided(explanation: Explanation, parts: Breakdown) -> str:
    """` (11 % waiting for rank 1, 12 % transfer)`, where the source tells."""
    waiting, transfer, late = WAITING.share(parts), TRANSFER.share(parts), explanation.straggler
    if waiting is None or transfer is None:
        return ""
    who = WAITING.name if late is None else f"waiting for rank {late}"
    return f" ({format_share(waiting)} {who}, {format_share(transfer)} transfer)"


def by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """The largest gain first; unknown ones last."""
    return sorted(findings, key=lambda finding: (finding.gain is None, -(finding.gain or 0.0)))


def _with_gain(finding: Finding, explanation: Explanation) -> str:
    saved = _saved_words(finding, explanation.step_s)
    return plain(finding.sentence, 300).removesuffix(".") + (f"; {saved}" if saved else "")


def _saved_words(finding: Finding, step_s: float | None) -> str:
    """`fix saves 21 ms per step (1.8x)`; a guess is called one, and what has no gain says nothing."""
    if finding.gain is None:
        return ""
    times = f"{1 + finding.gain:.{1 if finding.gain >= _CLEAR_GAIN else 2}f}x"
    guess = ", a guess" if finding.gain_from == "guess" else ""
    if step_s is None:
        return f"fix makes steps {times} faster{guess}"
    return f"fix saves {format_seconds(step_s * finding.gain / (1 + finding.gain))} per step ({times}{guess})"


def _item(finding: Finding, explanation: Explanation) -> Item:
    return Item(
        plain(finding.sentence, 300),
        _saved_words(finding, explanation.step_s),
        plain(finding.change, 300),
        [(plain(name, 60), plain(value, 200)) for name, value in finding.evidence.items()],
        _GAIN_FROM.get(finding.gain_from, ""),
    )


def _reading(explanation: Explanation) -> list[str]:
    """Files, ranks and steps, and what tracing costs: a line each."""
    names = [plain(name, 60) for name in explanation.files[:_MOST_FILES]]
    more = f" and {len(explanation.files) - len(names):,} more" if len(explanation.files) > len(names) else ""
    lines = [f"{plural(len(explanation.files), 'file')}: {', '.join(names)}{more}"] if names else []
    lines.append(_traced(explanation))
    if explanation.overhead is not None and explanation.overhead >= _NOISE:
        lines.append(f"tracing itself made a step {format_share(explanation.overhead)} longer")
    return lines


def _traced(explanation: Explanation) -> str:
    """Describe what was traced: its kind and name, ranks, engine, steps and how many of them are warm-up."""
    what = f"{explanation.kind}: {plain(explanation.what, 60)}"
    ranks, size = len(explanation.ranks), explanation.world_size
    if not ranks:
        return f"{what}; no steps are in it"
    who = plural(ranks, "rank") if size is None else f"{ranks:,} of {plural(size, 'rank')}"
    steps, source = step_count(explanation), explanation.steps_from
    told = plural(steps, "step") if steps else "no steps were found"
    if steps and source not in ("none", ""):
        told += f" from {_STEPS_FROM.get(source, plain(source, 100))}"
    if explanation.warmup_steps:
        told += f"; warm-up: {plural(explanation.warmup_steps, 'step')}"
    return f"{what}: {who}, {engine_words(explanation)}; {told}"


def engine_words(explanation: Explanation) -> str:
    """`ddp over gloo on cpu`, `ddp with 42 alltoall over nccl on cuda`, `2,020 allreduce over nccl on cuda`."""
    others = [f"{explanation.collectives.get(name, 0):,} {plain(name, 16)}" for name in explanation.others[:_FEW]]
    counts = listed(others) if others else ""
    engine = {NO_ENGINE: "", COLLECTIVES.name: counts or COLLECTIVES.name}.get(
        explanation.engine, plain(explanation.engine, 24) + (f" with {counts}" if counts else "")
    )
    over = f"over {plain(explanation.backend, 24)}" if explanation.backend else ""
    return " ".join(filter(None, (engine, over, f"on {explanation.device}")))


def step_count(explanation: Explanation) -> int:
    """Steps that were seen, warm-up among them."""
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


def _loss_words(explanation: Explanation) -> str:
    """A warning of what could not be read; empty when everything was."""
    lost = explanation.lost
    counts = [plural(lost.events, "event")] if lost.events else []
    counts += [format_bytes(lost.bytes)] if lost.bytes else []
    files = [plain(each, 200) for each in lost.files[:_MOST_FILES]]
    files += [f"and {plural(len(lost.files) - len(files), 'more file')}"] if len(lost.files) > len(files) else []
    inside = ": ".join(filter(None, (" and ".join(counts), plain(lost.reason, 200))))
    words = "; ".join(filter(None, (*files, inside)))
    return f"not read: {words}" if words else ""


class _Row(NamedTuple):
    """The typical step of a rank, or of all."""

    name: str
    parts: Breakdown
    late_s: float | None = None


def _accounting(explanation: Explanation, whole: Breakdown, notes: Sequence[str]) -> Table:
    """The mean over ranks and every rank, as percentages that add up to the step, and as a bar of letters."""
    several = len(explanation.per_rank) > 1
    accounts = ranks_in_order(explanation) if several else []
    rows = [_Row("all" if several else "mean", whole)]
    rows += [_Row(f"{each.rank:,}", each.parts, each.late_s) for each in accounts]
    shown = parts_of([row.parts for row in rows])

    def bar(row: _Row) -> list[Bar]:
        return [Bar(part.letter, part.share(row.parts) or 0.0, part.colour) for part in shown]

    told = [("all: mean over ranks and steps" if several else "mean over steps") + ", parts in % of the step"]
    told[0] += f"; the median step takes {format_seconds(explanation.step_s)}" if explanation.step_s else ""
    absent = [part.name for part in PARTS if part.seconds(whole) is None]
    told += [f"not told by this source, and in other: {', '.join(absent)}"] if absent else []
    if (possibly := explanation.possibly_hidden_s) is not None and whole.step_s > 0:
        share = f"{format_seconds(possibly)} ({format_share(possibly / whole.step_s)})"
        told.append(f"{share} is communication before the last gradient was there: possibly hidden")
    columns = (
        Column("name", "rank", words=True),
        Column("parts.step_s", "step", write=format_seconds),
        *(_percent(part) for part in shown),
        _percent(HIDDEN)._replace(priority=1),
        Column("late_s", "late", write=format_seconds, priority=2),
        Column(bar, short="parts", is_bar=True),
    )
    caption = capital(f"{_traced(explanation)}.")
    return Table(columns, rows, caption, notes=[*told, *notes], noun="rank", most=MOST_RANKS + 1)


def _percent(part: Part) -> Column:
    return Column(lambda row: part.share(row.parts), f"{part.name} (%)", part.short, _as_percent)


def _as_percent(share: float) -> str:
    return number(100 * share, 1)


def _bar_alone(table: Table, explanation: Explanation) -> Table:
    """The mean step as a bar, with what the letters mean."""
    whole = table.rows[0].parts
    parts = [part for part in parts_of([whole]) if part.seconds(whole)]
    key = ", ".join(f"{part.letter} {part.name}" for part in parts)
    return Table(table.columns[-1:], table.rows[:1], "", _traced(explanation), [f"parts: {key}"])


def ranks_in_order(explanation: Explanation) -> list[RankAccount]:
    """By number; of more ranks than are shown the straggler and the slowest are the first."""
    accounts = sorted(explanation.per_rank, key=attrgetter("rank"))
    if len(accounts) <= MOST_RANKS:
        return accounts
    first = {explanation.straggler, max(accounts, key=lambda account: account.parts.step_s).rank}
    return sorted(accounts, key=lambda account: account.rank not in first)


def _horovod_lines(account: HorovodAccount) -> list[str]:
    """Negotiation, queue and copies, collectives, fusion and cycles, who was late: a line each."""

    def parts(seconds: Mapping[str, float | None]) -> str:
        known = [f"{name} {format_seconds(each)}" for name, each in seconds.items() if each is not None]
        return ", ".join(known) or "none"

    def numbers(counts: Mapping[str, float | None]) -> str:
        return ", ".join(f"{each:.3g} {name}" for name, each in counts.items() if each is not None)

    negotiation = {
        "negotiation": account.negotiation_s,
        "until the last rank was ready": account.waiting_s,
        "protocol": account.protocol_s,
        "negotiation in the first step": account.first_negotiation_s,
    }
    around = {
        "queue": account.queue_s,
        "wait for data": account.data_wait_s,
        "copy into the fusion buffer": account.memcpy_in_s,
        "out of it": account.memcpy_out_s,
    }
    collectives = sorted(account.collectives_s.items(), key=lambda item: -item[1])[:_MOST_LINES]
    size = "" if account.bytes_per_response is None else f" and {format_bytes(account.bytes_per_response)}"
    fused = f"{account.responses:.3g} messages of {account.tensors_per_response:.3g} tensors{size} each"
    cycles = numbers({"cycles": account.cycles, "of them without work": account.idle_cycles})
    lines = [
        parts(negotiation) + (" (cached: the rank waited for is unknown)" if account.cached else ""),
        parts(around),
        f"collectives: {parts({plain(name, 30): seconds for name, seconds in collectives})}",
        "; ".join(filter(None, (fused, cycles))),
    ]
    if whole := sum(account.last_rank.values()):
        last = sorted(account.last_rank.items(), key=lambda item: -item[1])[:_MOST_LINES]
        times = ", ".join(f"rank {rank} {count:,} times" for rank, count in last)
        lines.append(f"last to be ready in {whole:,} negotiations: {times}")
    return lines


def _tensors(account: HorovodAccount) -> Table:
    spent = {
        "negotiation_s": "negotiation",
        "collective_s": "collective",
        "memcpy_s": "memcpy",
        "queue_s": "queue",
        "data_wait_s": "data",
    }  # The last are left out first where there is no room
    columns = (
        Column(lambda tensor: plain(tensor.name, 24), "tensor", words=True),
        Column("bytes", "size", write=format_bytes),
        Column("count", "count", write="{:,}".format, priority=1),
        *(
            Column(attrgetter(field), name, name.replace("negotiation", "negot."), format_seconds, priority=at)
            for at, (field, name) in enumerate(spent.items())
        ),
    )
    order = sorted(account.tensors, key=lambda each: -each.count * sum(getattr(each, field) for field in spent))
    return Table(columns, order, "Tensors that take longest, medians per operation.", noun="tensor", most=_MOST_ROWS)


def _exchanges(explanation: Explanation) -> list[Table]:
    """Collectives by pass, operation and group, where the trace knows passes."""
    if not any(each.phase for each in explanation.exchanges) or explanation.too_heavy:
        return []
    columns = (
        Column(lambda each: each.phase or "-", "pass", words=True),
        Column(lambda each: plain(each.operation, 16), "operation", words=True),
        Column(lambda each: plain(each.group, 16), "group", words=True, priority=2),
        Column("modules", "modules", write="{:,}".format, priority=2),
        Column("count", "count", write="{:,.3g}".format),
        Column("prefetched", "prefetched", write="{:,.3g}".format),
        Column("bytes", "size", write=format_bytes),
        Column("exposed_s", "exposed", write=format_seconds),
        Column("waiting_s", "waiting", write=format_seconds),
        Column(lambda each: each.seconds - each.exposed_s, "hidden", write=format_seconds, priority=1),
        Column(_most_exposed, "most exposed", words=True, priority=2),
    )
    caption = "Collectives of a typical step, by pass: means over ranks and steady steps."
    return [Table(columns, explanation.exchanges, caption, noun="exchange", most=_MOST_ROWS)]


def _most_exposed(exchange: ExchangeAccount) -> str:
    """The module whose collectives are exposed longest, and how long."""
    module, seconds = next(iter((exchange.module_exposed_s or {}).items()), ("", 0.0))
    return "-" if not seconds else f"{plain(module, 30)} ({format_seconds(seconds)})"


def _transfers(explanation: Explanation) -> Table:
    columns = (
        Column(lambda each: plain(each.operation, 16), "operation", words=True),
        Column("bytes", "size", write=format_bytes),
        Column("ranks", "ranks", write="{:,}".format, priority=2),
        Column("count", "count", write="{:,}".format, priority=1),
        Column("seconds", "time", write=format_seconds),
        Column("wait_s", "wait", write=format_seconds),
        Column(lambda each: each.bus_bytes_per_s / 1e6, "bus MB/s", write=format_rate),
        Column("probed_s", "probe", write=format_seconds),
    )
    order = sorted(explanation.transfers, key=lambda each: -each.count * each.seconds)
    caption = "Transfers, those that take most first: medians of what one takes."
    key = "wait: the first rank for the last one, before one transfer" if any(each.wait_s for each in order) else ""
    return Table(columns, order, caption, key=key, noun="size", most=_MOST_ROWS)


def _epochs(explanation: Explanation) -> Table:
    columns = (
        Column("number", "epoch", write="{:,}".format),
        Column("steps", "steps", write="{:,}".format),
        Column("seconds", "time", write=format_seconds),
        Column("negotiation_share", "negotiation (%)", write=_as_percent),
        Column("exposed_share", "exposed (%)", write=_as_percent),
    )
    return Table(columns, explanation.epochs, "Epochs, by the log.", noun="epoch", most=_MOST_ROWS)


def _rank_lines(explanation: Explanation) -> list[str]:
    """The straggler, how long ranks wait for the last one, and how well clocks agree."""
    lines = [straggler_words(explanation)]
    if explanation.skew_s:
        wait = f"ranks wait {format_seconds(median(explanation.skew_s))} a step for whichever is last"
        lines.append(f"{wait}; shares and findings count less, the mean over ranks: the last one does not wait")
    if clocks := explanation.clocks:
        pairs, left = min(clock.pairs for clock in clocks), max(clock.residual_s for clock in clocks)
        lines.append(f"clocks aligned on the ends of {pairs:,} collectives or more, to {format_seconds(left)}")
    return [line for line in lines if line]


def straggler_words(explanation: Explanation) -> str:
    """Name who is late, or say why nobody is named; empty where there is nothing to say."""
    note, late = plain(explanation.straggler_note, 200), explanation.straggler
    if late is None:
        return f"straggler: {note}" if note else ""
    seconds = {account.rank: account.late_s for account in explanation.per_rank}
    seconds |= explanation.horovod.late_s if explanation.horovod else {}
    told = f"rank {late} is the straggler"
    if own := seconds.get(late):
        told += f": it comes {1e3 * own:,.3g} ms later to collectives than the first"
    return f"{told}; {note}" if note else told


def _over_time(explanation: Explanation) -> list[str]:
    """The first step, changes and periods, a line each."""
    lines = []
    first, steady_s = next(iter(step_seconds(explanation).values()), 0.0), explanation.traced_step_s
    steady_s = steady_s or explanation.step_s
    if steady_s and first >= _WORTH_A_LINE * steady_s:
        lines.append(f"the first step took {format_seconds(first)}, {first / steady_s:.3g} steady ones")
    for change in explanation.changes[:_MOST_LINES]:
        before, after = format_seconds(change.before_s), format_seconds(change.after_s)
        lines.append(f"from step {change.step:,} on a step takes {after} instead of {before}")
    more = len(explanation.changes) - _MOST_LINES
    lines += [plural(more, "more change")] if more > 0 else []
    for period in explanation.periods[:_MOST_LINES]:
        excess = format_seconds(period.excess_s)
        lines.append(f"every {period.every:,} steps one takes {excess} longer: seen {plural(period.count, 'time')}")
    return lines


def _every_step(explanation: Explanation) -> Table:
    """One row per step and rank, in seconds; warm-up steps say so, and what the source cannot tell is empty."""
    steady, what = first_steady(explanation), plain(explanation.what, 200)
    columns = (
        Column("rank", key="rank"),
        Column("index", key="step"),
        Column(lambda step: int(step.index < steady), key="warmup"),
        Column("start_s", key="start_s"),
        *(Column(f"parts.{name}", key=name) for name in Breakdown.__struct_fields__),
        Column(lambda _: what, key="what"),
    )
    return Table(columns, explanation.steps, "")


_AS_THEY_ARE = (
    "kind",
    "what",
    "files",
    "world_size",
    "engine",
    "collectives",
    "backend",
    "device",
    "steps_from",
    "warmup_steps",
    "step_s",
    "traced_step_s",
    "lost",
    "bucket_bytes",
    "clocks",
    "skew_s",
    "straggler",
    "straggler_note",
    "changes",
    "periods",
    "first_steps",
    "overhead",
    "notes",
)  # Fields whose JSON has their name


def _json(explanation: Explanation) -> dict[str, Any]:
    """The JSON of an explanation: units are SI and in the names; accounting is in fractions of the step.

    What the source cannot separate is absent, and its time is in other; without steps the accounting is empty.
    """
    parts, possibly, document = explanation.accounting, explanation.possibly_hidden_s, {}
    if parts and possibly is not None:
        document["possibly_hidden_communication"] = possibly / parts.step_s if parts.step_s > 0 else 0.0
    if explanation.network:
        document["network"] = _plain(explanation.network)
    return {
        **{name: _plain(getattr(explanation, name)) for name in _AS_THEY_ARE},
        "ranks": len(explanation.ranks),
        "rank_numbers": list(explanation.ranks),
        "steps": step_count(explanation),
        **(_shares_json(parts) if parts else {"accounting": {}}),
        **document,
        "findings": _plain(by_gain(explanation.findings)),
        "per_rank": [
            {"rank": each.rank, "steps": each.steps, "step_s": each.parts.step_s, **_shares_json(each.parts)}
            | ({} if each.late_s is None else {"late_s": each.late_s})
            for each in explanation.per_rank
        ],
        "transfers": [_known(transfer) for transfer in explanation.transfers],
        "exchanges": [_known(exchange) for exchange in explanation.exchanges],
        "horovod": _known(explanation.horovod) if explanation.horovod else None,
        "epochs": [_known(epoch) for epoch in explanation.epochs],
        "shown_step": explanation.shown_index,
    }


def _shares_json(parts: Breakdown) -> dict[str, Any]:
    """Parts in fractions of the step; exposed communication divided and hidden communication where they are known."""
    told: dict[str, Any] = {
        "accounting": {part.key: share for part in PARTS if (share := part.share(parts)) is not None}
    }
    if parts.waiting_s is not None:
        told["exposed"] = {part.key: part.share(parts) or 0.0 for part in (WAITING, TRANSFER)}
    if parts.hidden_s is not None:
        told[HIDDEN.key] = HIDDEN.share(parts)
    return told


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True)


def _known(record: msgspec.Struct) -> dict[str, Any]:
    """Keep only what the source can tell."""
    return {name: value for name, value in _plain(record).items() if value is not None}
