"""The command line: one verb per file, one visible list of verbs, errors caught once."""

import contextlib
import io
import os
import re
import signal
import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import typer
import typer.core

from scalescope.cli.compare import compare
from scalescope.cli.doctor import doctor
from scalescope.cli.estimate import estimate
from scalescope.cli.explain import explain
from scalescope.cli.measure import measure
from scalescope.cli.probe import probe
from scalescope.cli.report import report
from scalescope.cli.study import study
from scalescope.cli.tune import tune
from scalescope.cli.tune_options import VERB, split_at_command
from scalescope.errors import ScalescopeError, UsageError
from scalescope.named_paths import named_paths
from scalescope.text import clean, trimmed

VERBS = (study, estimate, probe, measure, explain, tune, report, compare, doctor)
_INTERRUPTED = 130
# typer's error for every misuse of options; it has no public name in all versions.
_BadWords: Any = typer.BadParameter.__base__


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _interrupt)
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Run one command; its exit code."""
    broken = [word for word in words if word != word.encode(errors="ignore").decode()]
    if broken:  # no record could hold it
        return _fail(f"the argument {broken[0]!r} is not UTF-8: rename the file or retype it", UsageError.exit_code)
    try:
        arguments, command = split_at_dashes(words)
        if arguments[:1] == [VERB]:
            arguments, command = split_at_command(arguments, command)
        _refuse_empty(arguments)
        with named_paths(words):
            result = application()(arguments, prog_name="scalescope", standalone_mode=False, obj=command)
    except _BadWords as problem:
        return _fail(problem.format_message() + _see_help(problem), UsageError.exit_code)
    except ScalescopeError as problem:
        return _fail(str(problem), problem.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        result = _INTERRUPTED
    except BrokenPipeError:
        return 0
    if result == _INTERRUPTED:  # typer's way to say that Ctrl-C came
        return _fail("interrupted: nothing is left running and every finished launch is kept", _INTERRUPTED)
    return result if isinstance(result, int) else 0


def _refuse_empty(words: list[str]) -> None:
    """An option without a value would mean its default: nobody types that, an unset shell variable does."""
    for before, word in pairwise(["", *words]):
        option = before if before.startswith("-") else ""
        if word == "":
            told = f"{option} is empty: give it a value" if option else "an argument is empty: write what it stands for"
            raise UsageError(f"{told}, or leave it out")
        if re.fullmatch("--[a-z-]+=", word):
            raise UsageError(f"{word[:-1]} is empty: give it a value, or leave it out")


def split_at_dashes(words: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words before the first `--` and the user's command after it."""
    if "--" not in words:
        return words, ()
    at = words.index("--")
    if not words[at + 1 :]:
        raise SystemExit(_fail("there is no command after --: write it there, for example -- python train.py", 2))
    return words[:at], tuple(words[at + 1 :])


def application() -> typer.Typer:
    """The command line with all its verbs."""
    app = typer.Typer(
        cls=_Group,
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback(help=__doc_for_users__)(lambda: None)
    for verb in VERBS:
        app.command(cls=_Command)(verb)
    return app


class _HelpText(io.StringIO):
    """Takes what typer prints as help, which it lays out for stdout, and pads."""

    encoding = property(lambda self: sys.__stdout__.encoding if sys.__stdout__ else "utf-8")

    def isatty(self) -> bool:
        return bool(sys.__stdout__ and sys.__stdout__.isatty())


class _TidyHelp:
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print help without blanks at line ends."""
        with contextlib.redirect_stdout(_HelpText()) as page:
            super().format_help(ctx, formatter)  # type: ignore[misc]
        print(trimmed(page.getvalue()), end="")


class _Command(_TidyHelp, typer.core.TyperCommand):
    pass


class _Group(_TidyHelp, typer.core.TyperGroup):
    pass


__doc_for_users__ = "A scaling lab for data-parallel PyTorch training, on Horovod and on DDP."


def _see_help(problem: Any) -> str:
    return f" (see {problem.ctx.command_path} --help)" if problem.ctx else ""


def _fail(message: str, code: int) -> int:
    print(f"scalescope: {clean(message)}", file=sys.stderr)
    return code


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel and a shell may both send it
        _leave_closed_terminal()
    raise KeyboardInterrupt


def _leave_closed_terminal() -> None:
    """Writing to a terminal that was closed fails, which must not keep anything from being cleared up."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
