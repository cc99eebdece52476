"""The command line: every verb is parsed, run, shown and ended by one driver; errors are caught once."""

import contextlib
import copy
import gc
import inspect
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
import typer.core

from scalescope import __version__
from scalescope.errors import Interrupted, ScalescopeError, StoppedWaiting, Terminated, UsageError
from scalescope.named_paths import named_paths
from scalescope.options import options_of, parameters, read
from scalescope.progress import Progress
from scalescope.records.request import RunOptions
from scalescope.records.store import Record
from scalescope.records.submission import Submission
from scalescope.text import clean, trimmed
from scalescope.verbs import VERBS, limits_of, plan_verb, planned_request, resume_verb, run_verb
from scalescope.verbs.verb import Screen, Verb

_INTERRUPTED = 130
# typer's error for every misuse of options; it has no public name in all versions.
_BadWords: Any = typer.BadParameter.__base__


def main() -> None:
    """Run the command line and exit."""
    gc.set_threshold(50_000)  # imports make many objects that stay: to look through them again and again takes time
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        gc.freeze()  # all is given back at once: no last look for what could be


def run(words: list[str]) -> int:
    """Run one command; its exit code."""
    broken = [word for word in words if word != word.encode(errors="ignore").decode()]
    if broken:  # no record could hold it
        return _fail(f"the argument {broken[0]!r} is not UTF-8: rename the file or retype it", UsageError.exit_code)
    try:
        arguments, command = split_at_dashes(words)
        if arguments[:1] == ["tune"]:
            from scalescope.cli.horovodrun import as_typed_here

            options, command = as_typed_here(arguments[1:], command)
            arguments = ["tune", *options]
        _refuse_empty(arguments)
        with named_paths(words):
            result = application()(arguments, prog_name="scalescope", standalone_mode=False, obj=command)
    except _BadWords as problem:
        said = problem.format_message()  # nothing when no command was typed, which printed the help
        verb = next((verb for verb in VERBS if verb.name in words[:1]), None)
        if "unexpected extra argument" in said and verb and "command" in verb.request.__struct_fields__ and not command:
            said += f": a command stands after --, such as scalescope {verb.name} -- python train.py"
        return _fail(said + _see_help(problem), UsageError.exit_code) if said else UsageError.exit_code
    except ScalescopeError as problem:
        return _fail(str(problem), problem.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        result = _INTERRUPTED
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
    if "--resume" in words and [*words, "-"][words.index("--resume") + 1].startswith("-"):
        raise UsageError("--resume takes the folder to resume: type --resume DIR")


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
    app.callback(help=__doc_for_users__)(_top)
    for verb in VERBS:
        app.command(verb.name, help=inspect.cleandoc(verb.help), cls=_Command)(command_of(verb))
    return app


def _top(
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the version and exit.",
        callback=lambda value: _show_version(value),
        is_eager=True,
    ),
) -> None:
    pass


def _show_version(asked: bool) -> None:
    if asked:
        print(f"scalescope {__version__}")
        raise typer.Exit


def command_of(verb: Verb) -> Any:
    """The verb as typer takes it: its parameters are the options of its request, and of how one run goes."""

    def run_verb(context: typer.Context, **values: Any) -> None:
        sources = {name: str(context.get_parameter_source(name)) for name in values}
        typed = {name: value for name, value in values.items() if sources[name].endswith("COMMANDLINE")}
        drive(verb, typed, context.obj or ())

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    found = [context, *parameters(verb.request), *parameters(RunOptions, verb.takes)]
    rare = {option.keyword for option in (*options_of(verb.request), *options_of(RunOptions)) if option.opt.rare}

    def show_all(context: typer.Context, asked: bool) -> None:
        if asked:
            for parameter in context.command.params:
                parameter.hidden = parameter.hidden and parameter.name not in rare  # type: ignore[attr-defined]
            context.command.format_help(context, context.make_formatter())
            raise typer.Exit

    if rare.intersection(parameter.name for parameter in found):
        flag = typer.Option("--help-all", help="Show rare options, too.", is_eager=True, callback=show_all)
        kind = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter("help_all", kind, default=False, annotation=Annotated[bool, flag]))
    run_verb.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    run_verb.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
    return run_verb


def drive(verb: Verb, typed: Mapping[str, Any], command: tuple[str, ...]) -> None:
    """One verb from what was typed to its exit code."""
    of_run = {option.keyword for option in options_of(RunOptions)}
    given = {name: value for name, value in typed.items() if name not in of_run}
    shown = RunOptions(**read(RunOptions, {name: value for name, value in typed.items() if name in of_run}))
    screen = Screen(shown, str(given.get("folder", "")))
    if command:
        if "command" not in verb.request.__struct_fields__:
            raise UsageError(f"scalescope {verb.name} takes no command: leave -- and what follows out")
        given["command"] = command
    request, limits = None, {}
    if shown.resume:
        if shown.dry_run:
            raise UsageError("--resume keeps what was asked: leave --dry-run out")
        limits = limits_of(verb, given)
    elif not shown.join:
        with _remarks(screen):
            request = verb.ask(**given)
    if shown.dry_run and verb.dry_run:
        print(*plan_verb(verb, request), sep="\n")
        return
    from scalescope.show.progress import TerminalProgress

    try:
        with TerminalProgress(
            screen.console, quiet=shown.quiet, show_output=shown.show_output, verbose=shown.verbose
        ) as progress:
            if shown.join:
                record = _joined(Path(shown.join), progress)
            elif shown.resume:
                record = resume_verb(verb, Path(shown.resume), limits, progress)
            else:
                record = run_verb(verb, request, progress)
    except StoppedWaiting as stopped:
        raise Interrupted(f"interrupted: {stopped}") from None
    except KeyboardInterrupt as stopped:
        said = str(stopped) or shown.resume
        raise Interrupted(f"interrupted: nothing is left running{verb.kept(request, said)}") from None
    if request is None:
        request = planned_request(verb, Path(shown.resume) if shown.resume else record.folder)
    if isinstance(record, Submission):
        from scalescope.verbs.submit import of_submission

        ending = of_submission(record)
    else:
        ending = verb.end(record, request, screen)
    screen.tell(ending, record.folder if isinstance(record, Record) else None)
    if ending.code:
        raise typer.Exit(ending.code)


@contextlib.contextmanager
def _remarks(screen: Screen) -> Iterator[None]:
    """Show what reading a request remarks, unless quiet."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        yield
    for remark in found if not screen.shown.quiet else ():
        screen.say(str(remark.message))


def _joined(folder: Path, progress: Progress) -> Any:
    """The search for a script that tunes itself: `with scalescope.tuning(model):` starts this next to rank 0."""
    from scalescope.records.store import in_folder
    from scalescope.tuner.context import search_for

    tuning = search_for(folder, progress)
    if tuning is None:
        raise typer.Exit(1)
    return in_folder(tuning, folder)


class _HelpText(io.StringIO):
    """Takes what typer prints as help, which it lays out for stdout, and pads."""

    encoding = property(lambda self: sys.__stdout__.encoding if sys.__stdout__ else "utf-8")

    def isatty(self) -> bool:
        return bool(sys.__stdout__ and sys.__stdout__.isatty())


class _Help:
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print help without blanks at line ends, as wide as our other output where there is no terminal."""
        import typer.rich_utils

        from scalescope.show.terminal import WIDTH

        page = _HelpText()
        if not page.isatty() and "COLUMNS" not in os.environ:
            typer.rich_utils.MAX_WIDTH = WIDTH
        with contextlib.redirect_stdout(page):
            super().format_help(ctx, formatter)  # type: ignore[misc]
        print(trimmed(page.getvalue()), end="")


class _Command(_Help, typer.core.TyperCommand):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                parameter.type = copy.copy(parameter.type)
                parameter.type.get_metavar = lambda *_, **__: ""  # type: ignore[method-assign]  # no <str> in the help


class _Group(_Help, typer.core.TyperGroup):
    pass


__doc_for_users__ = """How a PyTorch training scales over processes and GPUs, with DDP, FSDP2 or Horovod.

Start with scalescope study cnn, a built-in model, or scalescope study -- python train.py.
"""


def _see_help(problem: Any) -> str:
    return f" (see {problem.ctx.command_path} --help)" if problem.ctx else ""


def _fail(message: str, code: int) -> int:
    print(f"scalescope: {clean(message)}", file=sys.stderr)
    return code


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the kernel and a shell may both send it
        _leave_closed_terminal()
    raise Terminated


def _leave_closed_terminal() -> None:
    """Writing to a terminal that was closed fails, which must not keep anything from being cleared up."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
