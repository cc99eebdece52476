"""Options, declared once: a field of a request says its help, its flag and how text is read and written.

From these fields come the command line, the keywords of the API, what --resume takes, and commands that are typed back.
"""

import functools
import inspect
import math
import os
import re
import shlex
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from scalescope.errors import UsageError
from scalescope.text import MASK, assignment, did_you_mean, plain
from scalescope.units import (
    LARGEST_COUNT,
    check_counts,
    check_fraction,
    check_seconds,
    parse_counts,
    parse_fraction,
    parse_seconds,
)

GROUPS = ("", "Search", "Statistics", "Launch", "Model", "Output")  # In the order of the help
EMPTY: tuple[Any, ...] = (None, "", (), [], {})  # Values that leave a default as it is


class Kind(NamedTuple):
    """Kind of values: how they are read from text or from Python, and written as text."""

    read: Callable[[Any, str], Any]  # Text or value, and the flag for errors
    write: Callable[[Any], Any] = str  # One text, or a list where the option repeats
    python: str = "str"  # Type of the keyword
    metavar: str | None = None
    repeats: bool = False
    is_flag: bool = False


class Also(NamedTuple):
    """A flag that stands for an option with this value."""

    flag: str
    help: str
    value: str


class Opt(NamedTuple):
    """One option of a verb: metadata of a request's field."""

    help: str
    kind: Kind
    flag: str = ""  # --FIELD by default
    keyword: str = ""  # Of the API; the field's name by default
    group: str = ""
    metavar: str = ""
    short: str = ""  # Another spelling, shown in the help
    argument: bool = False  # Positional
    after_dashes: bool = False  # The words after --
    of_run: bool = False  # Belongs to one run, not to the training: not typed again for another verb
    place: bool = False  # A file or folder that was there then: not even typed again for the same verb
    always: bool = False  # Typed back even where it is the default
    again: bool = False  # May be given anew with --resume
    of_files: bool = False  # Of explain: goes with files, too
    rare: bool = False  # In --help-all only
    hidden: bool = False  # In no help: horovodrun has it
    also: tuple[Also, ...] = ()
    horovodrun: tuple[str, ...] = ()  # Flags of horovodrun with the same meaning


class Option(NamedTuple):
    """An option of a verb, with the field that it belongs to."""

    field: str
    opt: Opt
    default: Any
    inside: str = ""  # The field of the request whose struct holds it
    required: bool = False

    @property
    def keyword(self) -> str:
        """Name in the API."""
        return self.opt.keyword or self.field

    @property
    def flag(self) -> str:
        """Name on the command line."""
        return self.opt.flag or f"--{self.field.replace('_', '-')}"

    def text(self, value: Any) -> Any:
        """The value as it is typed; empty where it says nothing."""
        return "" if value in EMPTY or value is False else self.opt.kind.write(value)

    def read(self, value: Any) -> Any:
        """The value of a text or of Python."""
        return self.opt.kind.read(value, self.flag)


@functools.cache
def options_of(request: type[msgspec.Struct]) -> tuple[Option, ...]:
    """The options of a request in the order of the help, its own first; those of a struct inside it included."""
    hints, found = get_type_hints(request, include_extras=True), []
    fields = {field.name: field for field in msgspec.structs.fields(request)}
    own_first = [name for kind in request.__mro__ for name in inspect.get_annotations(kind) if name in fields]
    for field in (fields[name] for name in dict.fromkeys(own_first)):
        hint = hints[field.name]
        if get_origin(hint) is Annotated and isinstance(hint.__metadata__[0], Opt):
            default = None if field.default is msgspec.NODEFAULT else field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            found.append(Option(field.name, hint.__metadata__[0], default, required=field.required))
            continue
        for inner in get_args(hint) if isinstance(hint, types.UnionType) else (hint,):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                found += [each._replace(inside=field.name, required=False) for each in options_of(inner)]
    return tuple(sorted(found, key=lambda each: GROUPS.index(each.opt.group)))


def read(request: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields from texts of the command line or from Python values, by keyword; what is empty keeps its default.

    Raises:
        UsageError: A keyword is unknown, or a value cannot be read.
    """
    known, given = {option.keyword: option for option in options_of(request)}, _shortened(request, given)
    fields: dict[str, Any] = {}
    for keyword, value in given.items():
        if keyword in known:
            if value not in EMPTY:
                fields[known[keyword].field] = known[keyword].read(value)
        else:
            near = did_you_mean(keyword, known)
            raise UsageError(f"there is no option '{plain(keyword, 60)}'{near}: leave it out, or see --help")
    return fields


def parameters(request: type[msgspec.Struct], only: Sequence[str] = ()) -> list[inspect.Parameter]:
    """The options as parameters of a typer command; `only` these fields where some are named."""
    import typer

    found = []
    options = [option for option in options_of(request) if not only or option.field in only]
    options = [option for option in options if not option.opt.after_dashes]
    lists = [option for option in options if option.opt.argument and option.opt.kind.repeats]
    for option in options:
        opt, kind = option.opt, option.opt.kind
        annotation: Any = bool if kind.is_flag else list[str] | None if kind.repeats else str
        default: Any = (
            ...
            if option.required
            else False
            if kind.is_flag
            else None
            if kind.repeats
            else str(option.text(option.default))
        )
        info: Any
        if opt.argument:
            if lists and not kind.repeats:
                continue  # a list of arguments takes its word
            info = typer.Argument(help=opt.help, metavar=opt.metavar or option.keyword.upper(), show_default=False)
        else:
            info = typer.Option(
                *(option.flag, opt.short) if opt.short else (option.flag,),
                help=opt.help,
                metavar=None if kind.is_flag else opt.metavar or kind.metavar,
                rich_help_panel=opt.group or None,
                hidden=opt.hidden or opt.rare,
            )
        found.append(_parameter(option.keyword, annotation, info, default))
        for also in opt.also:
            info = typer.Option(also.flag, help=also.help, rich_help_panel=opt.group or None)
            found.append(_parameter(_name_of(also.flag), bool, info, False))
    return found


def _parameter(name: str, annotation: Any, info: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _name_of(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _shortened(request: type[msgspec.Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace flags such as --offline by the option that they stand for."""
    given = dict(given)
    for option in options_of(request):
        for also in option.opt.also:
            if given.pop(_name_of(also.flag), False):
                if given.get(option.keyword) not in (*EMPTY, also.value):
                    raise UsageError(f"{also.flag} and {option.flag} contradict each other: keep one of them")
                given[option.keyword] = also.value
    return given


def flags(request: type[msgspec.Struct]) -> dict[str, tuple[str, Option]]:
    """List how every option is typed, by keyword; flags that stand for another option included."""
    found = {}
    for option in options_of(request):
        found[option.keyword] = (f"the {option.keyword.upper()}" if option.opt.argument else option.flag, option)
        found |= {_name_of(also.flag): (also.flag, option) for also in option.opt.also}
    return found


def typed(
    words: Sequence[str], target: type[msgspec.Struct], request: msgspec.Struct, *, whole: bool = False, **changes: Any
) -> str:
    """The command that asks a verb for the same training.

    Args:
        words: Program and verb.
        target: The verb's request, whose options are typed.
        request: What is trained, on what, and how it is launched. What the verb has no option for is left out.
        whole: Type options of this run only and its files, too, so that the very same run is made elsewhere.
        **changes: Values that differ, by keyword.
    """
    own, texts = {option.keyword: option for option in options_of(type(request))}, {}
    options = [option for option in options_of(target) if not option.opt.after_dashes]
    for option in options:
        source = own.get(option.keyword, option)
        holder = getattr(request, source.inside, None) if source.inside else request
        if option.keyword in changes:
            texts[option.keyword] = option.text(changes[option.keyword])
        elif whole or not source.opt.of_run:
            texts[option.keyword] = source.text(getattr(holder, source.field, None))
    typed = list(words)
    for option in options:
        if option.opt.argument and (text := texts.get(option.keyword)):
            typed += text if isinstance(text, list) else [text]
    for option in options:
        text = texts.get(option.keyword, "")
        usual = text == option.text(option.default) and not option.opt.always
        if not option.opt.argument and not usual:
            typed += _typed(option, text)
    command = getattr(request, "command", ())
    return shlex.join([*typed, "--", *command] if command else typed)


def _typed(option: Option, text: Any) -> list[str]:
    """The words of one option with this text, or these texts; none where it says nothing."""
    if text in EMPTY:
        return []
    if option.opt.kind.is_flag:
        return [option.flag]
    texts = text if isinstance(text, list) else [text]
    # What begins like an option itself has to be tied to its flag.
    return [
        word for each in texts for word in ([f"{option.flag}={each}"] if each.startswith("-") else [option.flag, each])
    ]


def typed_limits(target: type[msgspec.Struct], fields: Mapping[str, Any]) -> list[str]:
    """The words of options with these values, by field, as `--resume` takes them."""
    options = [option for option in options_of(target) if option.field in fields]
    return [word for option in options for word in _typed(option, option.text(fields[option.field]))]


def of_run(request: msgspec.Struct) -> dict[str, Any]:
    """Words of the options of this run only, to repeat it as it was; files of then left out."""
    own = [option for option in options_of(type(request)) if option.opt.of_run and not option.opt.place]
    values = {option.keyword: getattr(request, option.field) for option in own}
    return {option.keyword: values[option.keyword] for option in own if values[option.keyword] != option.default}


def signature(request: type[msgspec.Struct], *, again: bool = False) -> list[str]:
    """The keywords of a verb as a stub file declares them; with `again` those that --resume takes."""
    options = [option for option in options_of(request) if not option.opt.argument and (option.opt.again or not again)]
    return [f"{option.keyword}: {option.opt.kind.python} = ..." for option in options]


# Kinds of values


def count(least: int = 1, most: int = LARGEST_COUNT) -> Kind:
    """A whole number."""

    def read(value: Any, flag: str) -> int:
        whole = re.fullmatch(r"\s*[+-]?\d{1,5000}\s*", value) if isinstance(value, str) else isinstance(value, int)
        if not whole:
            raise UsageError(f"{flag} takes a whole number, not '{plain(str(value), 60)}'")
        number = int(value) if len(str(value)) < 1000 else most + 1
        if number > most:
            raise UsageError(f"{flag} takes a whole number up to {most:,}, not {plain(str(value), 60)}")
        if number < least:
            raise UsageError(f"{flag} takes a whole number from {least}, not {number}")
        return number

    return Kind(read, python="int | None", metavar="N")


def choice(*names: str, python: str = "str") -> Kind:
    """One of these words."""

    def read(value: Any, flag: str) -> str:
        if value not in names:
            shown = f"{', '.join(names[:-1])} or {names[-1]}"
            raise UsageError(f"{flag} takes {shown}, not '{plain(str(value), 60)}'")
        return str(value)

    return Kind(read, python=python, metavar="|".join(names))


def number(allowed: Callable[[float], bool], words: str) -> Kind:
    """A number that `words` describes, such as `a number above 0`."""

    def read(value: Any, flag: str) -> float:
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if not allowed(found):
            raise UsageError(f"{flag} takes {words}, not {plain(str(value), 60)}")
        return found

    return Kind(read, "{:g}".format, "float | None", "X")


def _read_counts(value: Any, flag: str) -> tuple[int, ...]:
    if isinstance(value, str):
        return parse_counts(value, flag)
    return check_counts((value,) if isinstance(value, int) else value, flag)


def write_counts(value: int | Sequence[int]) -> str:
    """`1..8` or `8,16,...,512` where it is one: commands are read."""
    counts = (value,) if isinstance(value, int) else tuple(value)
    if len(counts) > 2 and counts == tuple(range(counts[0], counts[-1] + 1)):
        return f"{counts[0]}..{counts[-1]}"
    if len(counts) > 3 and all(later == 2 * former for former, later in pairwise(counts)):
        return f"{counts[0]},{counts[1]},...,{counts[-1]}"
    return ",".join(map(str, counts))


def write_seconds(value: float) -> str:
    """`10m` for whole minutes, otherwise seconds; nothing for 0, which no option takes."""
    if not value:
        return ""
    return f"{value / 60:g}m" if value >= 60 and value % 60 == 0 else f"{round(value, 1) or value:g}s"


def _read_names(value: Any, flag: str) -> tuple[str, ...]:
    """`a,b` or a list, each name once."""
    names = value.split(",") if isinstance(value, str) else value
    found = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    if names and not found:
        raise UsageError(f"{flag} names nothing: name one, or leave it out")
    return found


def read_assignments(value: Any, _flag: str) -> tuple[str, ...]:
    """NAME=VALUE texts of either form."""
    if not isinstance(value, Mapping):
        return tuple(value)
    return tuple(f"{name}={str(each).lower() if isinstance(each, bool) else each}" for name, each in value.items())


def parse_environment(value: Any, flag: str = "--env") -> dict[str, str]:
    """NAME=VALUE texts, or values by name, as variables; a value that is shown as *** is the one that is set here."""
    variables = {}
    for text in [f"{name}={each}" for name, each in value.items()] if isinstance(value, Mapping) else value:
        name, each = assignment(text, flag, "NCCL_DEBUG=INFO")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"{flag}: '{plain(name)}' cannot name a variable: write it like NCCL_DEBUG=INFO")
        if each == MASK and name not in os.environ:
            raise UsageError(f"{flag} {name}={MASK} is how a value is shown: type the value itself, or export {name}")
        variables[name] = os.environ[name] if each == MASK else each
    return variables


def _read_words(value: Any, flag: str) -> tuple[str, ...]:
    """Words as a shell would split them."""
    try:
        return tuple(word for text in value for word in shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"{flag} cannot be split into words ({problem}): close its quotes") from None


def _seconds(value: Any, flag: str) -> float:
    return parse_seconds(value, flag) if isinstance(value, str) else check_seconds(value, flag)


def _fraction(value: Any, flag: str) -> float:
    return parse_fraction(value, flag) if isinstance(value, str) else check_fraction(value, flag)


def _text(value: Any, _flag: str) -> str:
    return str(value)


COUNT = count()
COUNTS = Kind(_read_counts, write_counts, "str | int | Sequence[int]", "LIST")
SECONDS = Kind(_seconds, write_seconds, "str | float | None", "TIME")
FRACTION = Kind(_fraction, lambda value: f"{100 * value:.4g}%", "str | float | None", "FRACTION")
TEXT = Kind(_text, python="str | None", metavar="NAME")
FILE = Kind(_text, python="str | Path | None", metavar="FILE")
FLAG = Kind(lambda value, _flag: bool(value), python="bool", is_flag=True)
NAMES = Kind(
    _read_names, lambda value: value if isinstance(value, str) else ",".join(value), "str | Sequence[str]", "LIST"
)
TEXTS = Kind(lambda value, _flag: tuple(value), list, "Sequence[str] | None", repeats=True)
FILES = Kind(lambda value, _flag: tuple(map(str, value)), list, "Sequence[str | Path]", "FILE", repeats=True)
ASSIGNMENTS = Kind(read_assignments, list, "Mapping[str, Any] | Sequence[str] | None", "NAME=VALUE", repeats=True)
# Values of variables may be secrets, so they are never typed back: logs keep what is printed.
VARIABLES = Kind(
    parse_environment,
    lambda value: [f"{name}={MASK}" for name in value],
    "Mapping[str, Any] | Sequence[str] | None",
    "NAME=VALUE",
    repeats=True,
)
WORDS = Kind(
    _read_words, lambda value: [shlex.quote(word) for word in value], "Sequence[str] | None", "ARG", repeats=True
)
