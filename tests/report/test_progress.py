"""Progress on a terminal, in a log, quiet and verbose."""

import io

from rich.console import Console

from scalescope.show.progress import TerminalProgress


def shown(*, terminal: bool = False, width: int = 100, quiet: bool = False, verbose: bool = False) -> str:
    """Six launches of 25 s each, of which the first fails."""
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    with TerminalProgress(console, quiet=quiet, show_output=True, verbose=verbose, clock=lambda: now[0]) as progress:
        progress.note("6 launches [bold]at 3 points.")
        for index in range(1, 7):
            progress.stage(f"launch {index}/6 ddp-np2", 25.0 * (7 - index), 400)
            now[0] += 20.0
            progress.advance(300)
            if progress._live:
                progress._live.refresh()
            now[0] += 5.0
            if index == 1:
                progress.note("ddp-np2: failed", "problem")
            else:
                progress.note("ddp-np2: 80 ms a step", "detail")
        progress.output("rank0", "loss [red]0.1")
        progress.stage("training to its end")
        now[0] += 10.0
        if progress._live:
            progress._live.refresh()
    return file.getvalue()


def test_a_log_has_notes_at_once_and_a_stage_a_minute_with_the_time_left() -> None:
    assert shown().splitlines() == [
        "6 launches [bold]at 3 points.",
        "ddp-np2: failed",
        "Launch 5/6 ddp-np2, 50 s left",
        "[rank0] loss [red]0.1",
    ]


def test_when_verbose_every_stage_and_every_detail_has_a_line() -> None:
    lines = shown(verbose=True).splitlines()
    assert lines[1:3] == ["Launch 1/6 ddp-np2, 2 min 30 s left", "ddp-np2: failed"]
    assert lines[3:5] == ["Launch 2/6 ddp-np2, 2 min 05 s left", "ddp-np2: 80 ms a step"]
    assert sum(line.startswith("Launch ") for line in lines) == 6
    assert lines[-1] == "Training to its end"


def test_on_a_terminal_one_live_line_has_the_stage_its_steps_and_the_time_left() -> None:
    text = shown(terminal=True)
    assert "launch 2/6 ddp-np2 · step 300 of 400 · 1 min 45 s left" in text
    assert "Launch" not in text, "nothing but notes stays"
    assert "training to its end · 2:40" in text, "where the end is not known the time that has passed is shown"
    assert "ddp-np2: failed" in text


def test_of_what_does_not_fit_the_steps_go_first_and_then_the_end_of_the_stage() -> None:
    assert "launch 1/6 ddp-np2 · 2 min 10 s left" in shown(terminal=True, width=60)
    narrow = shown(terminal=True, width=45)
    assert "… · 2 min 10 s left" in narrow


def test_quiet_shows_nothing_but_output_that_was_asked_for() -> None:
    assert shown(quiet=True) == "[rank0] loss [red]0.1\n"
    assert shown(quiet=True, terminal=True) == "[rank0] loss [red]0.1\n"


def test_what_takes_longer_than_expected_is_said() -> None:
    file, now = io.StringIO(), [0.0]
    console = Console(file=file, width=100, force_terminal=True, color_system=None, legacy_windows=False)
    with TerminalProgress(console, clock=lambda: now[0]) as progress:
        progress.stage("profile of mlp", 20.0)
        now[0] = 30.0
        assert progress._live
        progress._live.refresh()
    assert "profile of mlp · 11 s longer than expected" in file.getvalue()
