"""An explanation on the terminal: what stands out and what to change, or everything that was read."""

from collections.abc import Sequence
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from scalescope.records.explanation import Epoch, Explanation, Finding, RankAccount, Transfer
from scalescope.records.timeline import Breakdown
from scalescope.report.explanation import (
    DARK,
    PARTS,
    accounting_columns,
    by_gain,
    engine_words,
    loss_words,
    parts_shown,
    rank_words,
    saved_words,
    seconds_of,
    sentence,
    share,
    step_count,
    step_seconds,
    steps_from_words,
    straggler_words,
    tracing_words,
)
from scalescope.report.explanation_horovod import horovod_lines, tensor_rows
from scalescope.report.terminal import Answer, answered, bullet, cut_rows, encoded, reasons, say, section
from scalescope.text import plain, plural
from scalescope.units import format_bytes, format_rate, format_seconds, format_share

_MOST_CHANGES, _MOST_PERIODS, _MOST_EPOCHS = 4, 3, 5
_WORTH_A_LINE = 1.2  # A first step shorter than this many steady ones is not told
_MOST_RANKS, _MOST_TRANSFERS, _MOST_FILES, _MOST_EVIDENCE = 8, 6, 3, 400
_FEWEST_FOR_TREND = 5
_NOISE = 0.02  # An overhead below this is none that can be told
_LEAST_BAR, _MOST_BAR = 8, 40  # Letters of a bar
_GAIN_FROM = {"replay": "the step replayed without it", "accounting": "the accounting", "guess": "a guess: half of it"}


def show(explanation: Explanation, console: Console, *, details: bool = False) -> None:
    """What stands out and what to do; with `details` all that was read, the accounting of every rank and evidence."""
    if details:
        _show_all(explanation, console)
        return
    say(console, f"{explanation.kind}: {plain(explanation.what, 60)}: {steps_words(explanation)}")
    if explanation.accounting:
        parts = [part for part in parts_shown([explanation.accounting]) if seconds_of(part, explanation.accounting)]
        key = ", ".join(f"{part.letter} {part.name}" for part in parts)
        console.print(_bar(explanation.accounting, _MOST_BAR).append(f"  {key}", Style(dim=True)), highlight=False)
    ranks = "every rank, " if len(explanation.per_rank) > 1 else ""
    reasons(console, answer(explanation), f"{ranks}transfers, evidence and what changes over time")


def answer(explanation: Explanation) -> Answer:
    """Where a step goes, what stands out and what to change first."""
    found = by_gain(explanation.findings)
    why = [_with_gain(finding, explanation.step_s) for finding in found]
    why += [*over_time_lines(explanation), *rank_lines(explanation)]
    do = plain(found[0].change, 300) if found else ""
    warnings = [words for words in (loss_words(explanation), tracing_words(explanation)) if words]
    return answered(sentence(explanation), why, do=do, warnings=warnings)


def _with_gain(finding: Finding, step_s: float | None) -> str:
    saved = saved_words(finding, step_s)
    return plain(finding.sentence, 300).removesuffix(".") + (f"; {saved}" if saved else "")


def _show_all(explanation: Explanation, console: Console) -> None:
    say(console, f"{explanation.kind}: {plain(explanation.what, 60)}", "bold")
    for line in reading_lines(explanation):
        bullet(console, line)
    for warning in (loss_words(explanation), tracing_words(explanation)):
        if warning:
            bullet(console, warning, "yellow")
    for note in explanation.notes:
        bullet(console, plain(note, 300))
    if explanation.accounting:
        _accounting(explanation, explanation.accounting, console)
    section(console, "Horovod, per step", horovod_lines(explanation), tensor_rows(explanation))
    section(console, "Transfers, those that take most first", [], transfer_rows(explanation.transfers))
    section(console, "Ranks", rank_lines(explanation))
    section(console, "Over time", over_time_lines(explanation), epoch_rows(explanation))
    _findings(explanation, console)


def reading_lines(explanation: Explanation) -> list[str]:
    """Files, ranks and steps, a line each."""
    names = [plain(name, 60) for name in explanation.files[:_MOST_FILES]]
    more = len(explanation.files) - len(names)
    files = ", ".join(names) + (f" and {more:,} more" if more > 0 else "")
    lines = [f"{plural(len(explanation.files), 'file')}: {files}"] if names else []
    lines.append(steps_words(explanation))
    if explanation.overhead is not None and explanation.overhead < _NOISE:
        lines.append("what tracing itself added to a step is within the noise")
    elif explanation.overhead is not None:
        lines.append(f"tracing itself made a step {format_share(explanation.overhead)} longer")
    return lines


def steps_words(explanation: Explanation) -> str:
    """Which ranks and steps were read, and how many of them are warm-up."""
    steps, where = step_count(explanation), steps_from_words(explanation)
    told = f"{plural(steps, 'step')}" + (f" from {where}" if where else "") if steps else "no steps were found"
    count = explanation.warmup_steps
    warmup = f"; the first {plural(count, 'step')} are warm-up" if count > 1 else ""
    warmup = "; the first step is warm-up" if count == 1 else warmup
    return f"{rank_words(explanation)}, {engine_words(explanation)}; {told}{warmup}"


def _accounting(explanation: Explanation, whole: Breakdown, console: Console) -> None:
    """The mean over ranks and every rank as percentages and as a bar."""
    several = len(explanation.per_rank) > 1
    rows: list[tuple[str, Breakdown, RankAccount | None]] = [("all" if several else "mean", whole, None)]
    ranks = _some_ranks(explanation)
    if several:
        rows += [(f"rank {account.rank}", account.parts, account) for account in ranks]
    columns = accounting_columns(rows, short=True)
    width = sum(1 + max(map(len, (heading, *cells))) for heading, cells in columns.items())
    room = min(_MOST_BAR, console.width - width)
    grid = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
    for index, heading in enumerate(columns):
        grid.add_column(heading, justify="right" if index else "left", no_wrap=True)
    bars = [_bar(own, room) for _, own, _ in rows] if room >= _LEAST_BAR else []
    if bars:
        grid.add_column("", no_wrap=True)
    for index, cells in enumerate(zip(*columns.values(), strict=True)):
        grid.add_row(*map(Text, cells), *bars[index : index + 1])
    step = explanation.step_s if explanation.step_s is not None else whole.step_s
    console.print()
    say(console, f"Where a steady step of {format_seconds(step)} goes, in % of it", "bold")
    console.print(grid)
    if bars:
        every = parts_shown([own for _, own, _ in rows])
        parts = [part for part in every if any(seconds_of(part, own) is not None for _, own, _ in rows)]
        say(console, f"bar: {', '.join(f'{part.letter} {part.name}' for part in parts)}", "dim")
    for line in _accounting_notes(explanation, whole, len(ranks)):
        say(console, line, "dim")


def _accounting_notes(explanation: Explanation, whole: Breakdown, shown: int) -> list[str]:
    several = len(explanation.per_rank) > 1
    notes = ["all: mean over ranks and steps; the step above: median of steps"] if several else []
    left_out = len(explanation.per_rank) - shown
    if several and left_out > 0:
        notes.append(f"{plural(left_out, 'more rank')} between these: --json has them")
    absent = [part.name for part in PARTS if seconds_of(part, whole) is None]
    if absent:
        notes.append(f"not told by this source, and in other: {', '.join(absent)}")
    if (possibly := explanation.possibly_hidden_s) is not None:
        said = f"{format_seconds(possibly)} ({format_share(share(possibly, whole))}) is communication before the last"
        notes.append(f"{said} gradient was there: possibly hidden")
    return notes


def _some_ranks(explanation: Explanation) -> list[RankAccount]:
    """The first ranks, and the straggler and the slowest in any case."""
    accounts = explanation.per_rank
    if len(accounts) <= _MOST_RANKS:
        return list(accounts)
    slowest = max(accounts, key=lambda account: account.parts.step_s).rank
    kept = {slowest, explanation.straggler}
    first = [account.rank for account in accounts if account.rank not in kept][: _MOST_RANKS - len(kept)]
    return [account for account in accounts if account.rank in kept or account.rank in first]


def _bar(parts: Breakdown, room: int) -> Text:
    """A step as letters, each part in its colour; the ends are rounded, so that the whole keeps its length."""
    bar, passed = Text(), 0.0
    for part in parts_shown([parts]):
        begin = round(room * passed)
        passed = min(1.0, passed + share(seconds_of(part, parts) or 0.0, parts))
        letters = "#ffffff" if part.key in DARK else "#000000"
        bar.append(part.letter * (round(room * passed) - begin), Style(color=letters, bgcolor=part.colour))
    return bar


def transfer_rows(transfers: Sequence[Transfer]) -> list[list[str]]:
    """Operations and sizes with their bandwidths, heading first; those that take most time in all."""
    order = sorted(transfers, key=lambda each: -each.count * each.seconds)
    columns = [
        ("operation", [plain(each.operation, 16) for each in order]),
        ("size", [format_bytes(each.bytes) for each in order]),
        ("ranks", [f"{each.ranks:,}" for each in order]),
        ("count", [f"{each.count:,}" for each in order]),
        ("time", [format_seconds(each.seconds) for each in order]),
        ("wait", ["" if each.wait_s is None else format_seconds(each.wait_s) for each in order]),
        ("bus MB/s", [format_rate(each.bus_bytes_per_s / 1e6) for each in order]),
        ("probe", ["" if each.probed_s is None else format_seconds(each.probed_s) for each in order]),
    ]
    return cut_rows(columns, _MOST_TRANSFERS, "size")


def rank_lines(explanation: Explanation) -> list[str]:
    """The straggler, how long ranks wait for the last one over time, and how well clocks agree."""
    lines = [straggler_words(explanation), _skew_words(explanation.skew_s)]
    if explanation.clocks:
        worst = max(explanation.clocks, key=lambda clock: clock.residual_s)
        pairs = min(clock.pairs for clock in explanation.clocks)
        lines.append(
            f"clocks aligned on the ends of {pairs:,} collectives or more; what is left is "
            f"{format_seconds(worst.residual_s)}" + (" at worst" if len(explanation.clocks) > 1 else "")
        )
    return [line for line in lines if line]


def _skew_words(skew_s: Sequence[float]) -> str:
    """The typical wait for the last rank, and whether it grows or shrinks over the steps."""
    if not skew_s:
        return ""
    half = len(skew_s) // 2
    said = f"ranks wait {format_seconds(median(skew_s))} a step for whichever is last"
    if half >= _FEWEST_FOR_TREND:
        said += f" ({format_seconds(median(skew_s[:half]))} in the first half of the steps, "
        said += f"{format_seconds(median(skew_s[half:]))} in the second)"
    return said


def _findings(explanation: Explanation, console: Console) -> None:
    console.print()
    found = by_gain(explanation.findings)
    if not found:
        nothing = "nothing that is known to cost time was found" if explanation.accounting else "there are no steps"
        say(console, f"Nothing stands out: {nothing}.", "bold")
        return
    say(console, "What stands out, the largest gain first", "bold")
    for index, finding in enumerate(found, start=1):
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column()
        grid.add_row(f"{index}.", Text(encoded(plain(finding.sentence, 300), console), style="bold"))
        for heading, words in _finding_lines(finding, explanation.step_s):
            told = Text(f"{heading}: ", style="dim").append(encoded(words, console), Style(dim=False))
            grid.add_row("", told)
        console.print(grid)


def _finding_lines(finding: Finding, step_s: float | None) -> list[tuple[str, str]]:
    evidence = "; ".join(f"{plain(name, 60)} {plain(value, 120)}" for name, value in finding.evidence.items())
    lines = [("evidence", plain(evidence, _MOST_EVIDENCE))] if evidence else []
    if finding.change:
        lines.append(("change", plain(finding.change, 300)))
    if finding.gain is not None:
        source = f", from {_GAIN_FROM[finding.gain_from]}" if finding.gain_from else ""
        lines.append(("gain", f"{saved_words(finding, step_s)}{source}"))
    return lines


def over_time_lines(explanation: Explanation) -> list[str]:
    """The first step, changes and periods, a line each."""
    lines = [*_first_step(explanation)]
    for change in explanation.changes[:_MOST_CHANGES]:
        before, after = format_seconds(change.before_s), format_seconds(change.after_s)
        lines.append(f"from step {change.step:,} on a step takes {after} instead of {before}")
    more = len(explanation.changes) - _MOST_CHANGES
    lines += [plural(more, "more change")] if more > 0 else []
    for period in explanation.periods[:_MOST_PERIODS]:
        excess, times = format_seconds(period.excess_s), plural(period.count, "time")
        lines.append(f"every {_ordinal(period.every)} step takes {excess} longer: seen {times}")
    return lines


def _first_step(explanation: Explanation) -> list[str]:
    seconds = step_seconds(explanation)
    if not seconds or not explanation.step_s:
        return []
    first = next(iter(seconds.values()))
    times = first / (explanation.traced_step_s or explanation.step_s)
    return [f"the first step took {format_seconds(first)}, {times:.3g} steady ones"] if times >= _WORTH_A_LINE else []


def _ordinal(count: int) -> str:
    ending = "th" if 10 <= count % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{ending}"


def epoch_rows(explanation: Explanation) -> list[list[str]]:
    """The first epochs, heading first."""
    epochs = explanation.epochs
    columns = [
        ("epoch", [f"{epoch.number:,}" for epoch in epochs]),
        ("steps", [f"{epoch.steps:,}" for epoch in epochs]),
        ("time", [format_seconds(epoch.seconds) for epoch in epochs]),
        ("negotiation %", [_share(epoch, "negotiation_share") for epoch in epochs]),
        ("exposed %", [_share(epoch, "exposed_share") for epoch in epochs]),
    ]
    return cut_rows(columns, _MOST_EPOCHS, "epoch")


def _share(epoch: Epoch, field: str) -> str:
    value: float | None = getattr(epoch, field)
    return "" if value is None else f"{100 * value:.1f}"
