"""From the words of `scalescope tune` to a request: everything is checked before anything starts."""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from scalescope.errors import UsageError

if TYPE_CHECKING:
    from scalescope.records.job import Host, Knob, KnobValue
    from scalescope.records.tuning import Values
    from scalescope.tuner.settings import SettingsFile


_OF_A_SEARCH = (
    "offline",
    "method",
    "resume",
    "warmup_samples",
    "steps_per_sample",
    "max_samples",
    "gp_noise",
    "search",
    "log_file",
    "autotune_warmup_samples",
    "autotune_steps_per_sample",
    "autotune_bayes_opt_max_samples",
    "autotune_gaussian_process_noise",
    "autotune_log_file",
)
_WITH_RESUME = ("resume", "show_output", "json", "quiet")


class SearchOptions(NamedTuple):
    """How to search; None: as the method has it."""

    warmup_samples: int | None
    steps_per_sample: int | None
    max_samples: int | None
    gp_noise: float | None
    log_file: Path | None


def search_options(
    from_file: "Mapping[str, KnobValue]", typed: SearchOptions, in_old_words: SearchOptions
) -> SearchOptions:
    """What was typed, by either name, then what the file says."""
    for noise in (typed.gp_noise, in_old_words.gp_noise):
        if noise is not None and not 0 <= noise <= 1:
            raise UsageError(f"--gp-noise takes a part of the step time from 0 to 1, not {noise:g}")
    said = {name: value for name, value in in_old_words._asdict().items() if value is not None}
    for name, value in typed._asdict().items():
        if value is not None and said.setdefault(name, value) != value:
            option = _as_option(name)
            raise UsageError(f"{option} says {value} and its name of horovodrun says {said[name]}: keep one of them")
    log_file = {"log_file": Path(str(from_file["log_file"]))} if "log_file" in from_file else {}
    return typed._replace(**{**from_file, **log_file, **said})


def refuse_with_resume(context: typer.Context) -> None:
    """A search that goes on is told nothing new."""
    if context.obj:
        raise UsageError("--resume knows what to tune: leave the command out")
    for name, option in _given(context).items():
        if name not in _WITH_RESUME:
            raise UsageError(
                f"--resume goes on with what was asked: leave {option} out, or begin anew without --resume"
            )


def refuse_with_start_from(context: typer.Context) -> None:
    """A setting found earlier is used, not searched."""
    for name, option in _given(context).items():
        if name in _OF_A_SEARCH:
            raise UsageError(f"--start-from uses a setting without a search: leave {option} out, or --start-from")


def _given(context: typer.Context) -> dict[str, str]:
    """The parameters that were typed, and how they are typed."""
    names = {
        str(parameter.name): parameter.opts[0] if parameter.param_type_name == "option" else "the MODEL"
        for parameter in context.command.params
    }
    sources = {name: str(context.get_parameter_source(name)) for name in names}
    return {name: option for name, option in names.items() if sources[name].endswith("COMMANDLINE")}


def processes(text: str, hosts: "Sequence[Host]") -> int:
    """How many ranks: as asked, all slots of the hosts, or 2."""
    from scalescope.units import parse_counts

    counts = parse_counts(text, "--np") if text else (sum(host.slots for host in hosts) or 2,)
    if len(counts) > 1:
        raise UsageError(f"--np takes one number of processes, not '{text}': tune them one after another")
    if counts[0] < 2:
        raise UsageError("one process exchanges nothing that could be tuned: take 2 or more, by --np or --hosts")
    return counts[0]


def engine_of(asked: str, command: tuple[str, ...], files: "Mapping[str, SettingsFile]") -> str:
    """The engine whose knobs these are: as asked, as a file has it, or as the script looks."""
    from scalescope.engines import find_engine
    from scalescope.jobs.request import engine_of_script

    if asked and not find_engine(asked).knobs:
        raise UsageError(f"engine {asked} has no knobs: use ddp or horovod")
    looks = engine_of_script(command) if command else ""
    for option, file in files.items():
        known = asked or ("horovod" if looks == "horovod" else "")
        if file.engine and known and file.engine != known:
            raise UsageError(f"{option} is for {file.engine} and this is {known}: name another file, or --engine")
        asked = asked or file.engine
    return asked or looks or "ddp"


def holds(engine: str, from_file: "Values", texts: Sequence[str], flags: "Mapping[str, KnobValue | None]") -> "Values":
    """What stays as told; the command line outranks the file and must not contradict itself."""
    from scalescope.engines.base import parse_value
    from scalescope.tuner.settings import shown_value

    said: dict[str, KnobValue] = {}
    named = [(name, shown_value(value), _as_option(name)) for name, value in flags.items() if value is not None]
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise UsageError(f"--hold takes NAME=VALUE, for example bucket_cap_mb=25, not '{text}'")
        named.append((name.replace("-", "_"), value, "--hold"))
    for name, value, option in named:
        parsed = parse_value(_find_knob(engine, name, option), value)
        if name in said and said[name] != parsed:
            raise UsageError(
                f"{name} is held at {shown_value(said[name])} and at {shown_value(parsed)}: keep one of them"
            )
        said[name] = parsed
    return {**from_file, **said}


def _find_knob(engine: str, name: str, option: str) -> "Knob":
    from scalescope.engines import ENGINES
    from scalescope.tuner.settings import THREADS

    known = {**{knob.name: knob for knob in ENGINES[engine].knobs}, THREADS.name: THREADS}
    if name in known:
        return known[name]
    others = [other.name for other in ENGINES.values() if name in {knob.name for knob in other.knobs}]
    if others:
        raise UsageError(
            f"{option}: {name} is a knob of {others[0]} and this is {engine}: leave it out, or add --engine {others[0]}"
        )
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or sorted(known)
    raise UsageError(f"{option}: {engine} has no knob '{name}': {', '.join(near)}")


def one_thread_count(threads_per_rank: int | None, held: "Values") -> None:
    """--threads-per-rank and a held number of threads must not differ."""
    from scalescope.tuner.settings import THREADS

    if threads_per_rank and held.get(THREADS.name, threads_per_rank) != threads_per_rank:
        raise UsageError(
            f"--threads-per-rank says {threads_per_rank} and {THREADS.name} is held at {held[THREADS.name]}: keep one"
        )


def setting_to_start_from(found: "Values", held: "Values") -> "Values":
    """The setting of a file, if what is held leaves it as it is."""
    for name, value in found.items():
        if held.get(name, value) != value:
            raise UsageError(f"--start-from sets {name} to {value} and it is held at {held[name]}: leave one out")
    return found


def enough_steps(steps: int | None, steps_per_sample: int | None) -> None:
    """The training must not end before the first sample does."""
    if steps and steps_per_sample and steps < steps_per_sample:
        raise UsageError(f"--steps {steps} ends the training before one sample of {steps_per_sample} steps: raise it")


def words_of(texts: Sequence[str]) -> tuple[str, ...]:
    """Arguments of the launcher, as a shell would part them."""
    try:
        return tuple(word for text in texts for word in shlex.split(text))
    except ValueError as problem:
        raise UsageError(f"--launcher-arg cannot be parted into words ({problem}): close its quotes") from None


def _as_option(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_output(output: Path | None) -> None:
    """-o names a folder."""
    if output and output.exists() and not output.is_dir():
        raise UsageError(f"-o names a folder, and '{output}' is a file: choose another name")
