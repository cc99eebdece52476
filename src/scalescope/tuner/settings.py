"""A found setting as files that people keep: horovodrun's YAML, environment variables, and lines to paste."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scalescope.engines import ENGINES, find_engine
from scalescope.engines.base import parse_value, short_value
from scalescope.errors import UsageError
from scalescope.records.files import TUNING
from scalescope.records.job import Knob, KnobValue
from scalescope.records.store import load, write_whole
from scalescope.records.tuning import Tuning, Values
from scalescope.text import assignment, did_you_mean, knob_name, plain

YAML, ENVIRONMENT, TEXT = "tuned.yaml", "tuned.env", "tuned.txt"

THREADS = Knob(
    name="threads_per_rank",
    type="int",
    default=None,
    low=1,
    high=4096,
    variable="OMP_NUM_THREADS",
    meaning="threads that a rank computes with",
)  # Of every engine, and no engine's own

# Bytes of a settings file: people's have some hundred, and YAML reads numbers in base 60 in quadratic time.
_LONGEST = 20_000
_SECTIONS = (*(name for engine in ENGINES.values() for name in engine.sections), "autotune", THREADS.name)
_KNOB_SECTIONS = [engine.sections[0] for engine in ENGINES.values() if engine.sections]
_NOT_ABOUT_TUNING = ("timeline", "stall_check", "library_options", "logging")
_OPTIONS = {
    "warmup_samples": Knob(name="warmup_samples", type="int", default=None, low=0, high=1e6, meaning=""),
    "steps_per_sample": Knob(name="steps_per_sample", type="int", default=None, low=1, high=1e6, meaning=""),
    "bayes_opt_max_samples": Knob(name="max_samples", type="int", default=None, low=1, high=1e6, meaning=""),
    "gaussian_process_noise": Knob(name="autotune_noise", type="float", default=None, low=0, high=100, meaning=""),
}  # Of horovodrun's section autotune, as TuneRequest calls them


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a settings file."""

    engine: str  # Empty: the file names no knob of any engine
    values: Values = {}
    options: dict[str, KnobValue] = {}  # How to search, by the names of TuneRequest's fields


def fixed_knobs(engine: str, texts: Sequence[str]) -> Values:
    """Checked values of `NAME=VALUE` texts as --knob takes them; a knob may be given twice with the same value."""
    known = {knob.name: knob for knob in (*find_engine(engine).knobs, THREADS)}
    values: Values = {}
    for text in texts:
        name, value = assignment(text, "--knob", "bucket_cap_mb=25")
        name = knob_name(name)
        if name not in known:
            for other in ENGINES.values():
                if name in {knob.name for knob in other.knobs}:
                    instead = f"leave it out, or add --engine {other.name}"
                    raise UsageError(f"{name} is a knob of {other.name} and this is {engine}: {instead}")
            near, use = did_you_mean(name, known), ", ".join(sorted(known))
            raise UsageError(f"--knob: {engine} has no knob '{plain(name, 60)}'{near}: use one of {use}")
        parsed = parse_value(known[name], value.strip())
        if values.setdefault(name, parsed) != parsed:
            both = f"{shown_value(values[name])} and at {shown_value(parsed)}"
            raise UsageError(f"{name} is fixed at {both}: keep one of them")
    return values


def knob_texts(values: Mapping[str, KnobValue]) -> tuple[str, ...]:
    """Values as `NAME=VALUE` texts, which `fixed_knobs` and --knob read."""
    return tuple(f"{name}={shown_value(value)}" for name, value in values.items())


def write_settings(folder: Path, engine: str, values: Values, about: str = "") -> list[Path]:
    """Write the setting in every form it has; a form that would say nothing is left out (and its old file removed)."""
    variables = environment_of(engine, values)
    lines = "\n".join(how_to_use(engine, values))
    texts = {
        YAML: as_yaml(engine, values, about),
        ENVIRONMENT: "".join(f"{name}={value}\n" for name, value in variables.items()),
        TEXT: f"{lines}\n" if lines else "",
    }
    written = []
    for name, text in texts.items():
        path = folder / name
        if text:
            write_whole(path, text.encode())
            written.append(path)
        else:
            path.unlink(missing_ok=True)
    return written


def as_yaml(engine: str, values: Values, about: str = "") -> str:
    """The setting as a config file: for Horovod one that horovodrun takes too."""
    import yaml

    section, *others = find_engine(engine).sections
    inside = {name: short_value(value) for name, value in values.items()}
    outside = {name: inside.pop(name) for name in (*others, THREADS.name) if name in inside}
    document: dict[str, Any] = {section: inside, **outside}
    return (f"# {plain(about)}\n" if about else "") + yaml.safe_dump(document, sort_keys=False)


def environment_of(engine: str, values: Values) -> dict[str, str]:
    """The variables that carry the setting, as far as variables can."""
    chosen = find_engine(engine)
    named = {knob.variable for knob in chosen.knobs if knob.name in values}
    usual = chosen.environment({}, named_hosts=True)
    variables = {
        name: text
        for name, text in chosen.environment(values, named_hosts=True).items()
        if name in named or usual.get(name) != text
    }
    if THREADS.name in values:
        variables[THREADS.variable] = str(values[THREADS.name])
    return variables


def how_to_use(engine: str, values: Values, path: str = YAML) -> list[str]:
    """Lines for people: what to write in the script, and what to set around it."""
    lines = find_engine(engine).how_to_use(values, path)
    variables = environment_of(engine, values)
    if variables:
        words = " ".join(f"{name}={text}" for name, text in variables.items())
        lines.append(f"In the environment of every rank: {words}")
    return lines


def shown_value(value: KnobValue) -> str:
    """A value as people write it: true, 1, 2.5, ring."""
    return str(value).lower() if isinstance(value, bool) else str(short_value(value))


def read_found(path: Path) -> SettingsFile:
    """A setting found earlier: its file, a tuning.json, or the folder that holds them."""
    if path.is_dir():
        inside = next((path / name for name in (YAML, TUNING) if (path / name).is_file()), None)
        if inside is None:
            raise UsageError(f"there is no {YAML} in {plain(str(path))}: name a folder or a file of scalescope tune")
        path = inside
    if path.suffix == ".json":
        tuning = load(path, Tuning)
        return SettingsFile(engine=tuning.engine, values={**tuning.held, **tuning.values})
    found = read_settings(path)
    if not found.engine:
        sections = " or ".join(_KNOB_SECTIONS)
        raise UsageError(f"{plain(str(path))} holds no setting: name a file with a section {sections}")
    return found


def read_settings(path: Path) -> SettingsFile:
    """A config file in horovodrun's layout, or one of ours; everything in it is checked."""
    source, document = plain(str(path)), _document(path)
    _check_names(document, (*_SECTIONS, *_NOT_ABOUT_TUNING), f"{source}")
    engines = [engine for engine in ENGINES.values() if set(engine.sections) & set(document)]
    if len(engines) > 1:
        whose = " and of ".join(f"{engine.title} ({', '.join(engine.sections)})" for engine in engines)
        raise UsageError(f"{source} has settings of {whose}: keep one of them")
    given: dict[str, Any] = {THREADS.name: document.get(THREADS.name)}
    known = {THREADS.name: THREADS}
    for engine in engines:
        section, *others = engine.sections
        known |= {knob.name: knob for knob in engine.knobs}
        inside = _section(document, section, source)
        _check_names(inside, [knob.name for knob in engine.knobs if knob.name not in others], f"{source}: {section}")
        given |= inside | {name: document.get(name) for name in others}
    autotune = _section(document, "autotune", source)
    _check_names(autotune, (*_OPTIONS, "log_file", "enabled"), f"{source}: autotune")
    options = _read_values({name: autotune.get(name) for name in _OPTIONS}, _OPTIONS, source)
    if (log_file := autotune.get("log_file")) is not None:
        if not isinstance(log_file, str) or plain(log_file) != log_file or not log_file:
            raise UsageError(f"{source}: log_file takes the name of a file")
        options["log_file"] = log_file
    values = _read_values(given, known, source)
    return SettingsFile(engine=engines[0].name if engines else "", values=values, options=options)


def _document(path: Path) -> dict[str, Any]:
    import yaml

    source = plain(str(path))
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST + 1)
        if len(data) > _LONGEST:
            raise UsageError(f"{source} is too large for a settings file: name another one")
        document = yaml.safe_load(data.decode("utf-8-sig")) or {}
    except OSError as problem:
        raise UsageError(f"cannot read {source}: {problem.strerror}: name an existing settings file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise UsageError(f"{source} is not readable YAML ({plain(str(problem))}): correct it") from None
    if not isinstance(document, dict):
        raise UsageError(
            f"{source} has no sections such as {': or '.join(_KNOB_SECTIONS)}: name a settings file such as {YAML}"
        )
    return {str(name): content for name, content in document.items()}


def _section(document: dict[str, Any], name: str, source: str) -> dict[str, Any]:
    content = document.get(name) or {}
    if not isinstance(content, dict):
        raise UsageError(f"{source}: {name} takes indented lines such as name: value")
    return {str(key): value for key, value in content.items()}


def _check_names(given: Iterable[str], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = did_you_mean(name, known)
            raise UsageError(f"{where} has no key '{plain(name, 60)}'{near}: use one of {', '.join(known)}")


def _read_values(given: dict[str, Any], known: dict[str, Knob], source: str) -> Values:
    """Checked values; a key without one counts as not written, as horovodrun has it."""
    values: Values = {}
    for name, value in given.items():
        if value is None:
            continue
        knob = known[name]
        try:
            if not isinstance(value, bool | int | float | str):
                raise ValueError(f"{name} takes one value, not a list")
            text = plain(shown_value(value), 60)
            text = next((choice for choice in knob.choices if choice.lower() == text.lower()), text)
            values[knob.name] = parse_value(knob, text)
        except (UsageError, ValueError) as problem:
            raise UsageError(f"{source}: {str(problem).removeprefix('knob ')}") from None
    return values
