"""What tune is asked for: fixed knobs and search options from the call and from files, checked against each other."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.engines import ENGINES, USUAL, find_engine, tunable
from scalescope.engines.base import parse_value
from scalescope.errors import UsageError
from scalescope.jobs.request import engine_of_script, fields_of
from scalescope.options import EMPTY, flags
from scalescope.records.job import Host, Knob, KnobValue
from scalescope.records.tuning import TuneRequest, Values
from scalescope.text import assignment, did_you_mean, knob_name, plain
from scalescope.tuner.journal import check_log_file
from scalescope.tuner.settings import THREADS, SettingsFile, read_found, read_settings, shown_value
from scalescope.tuner.space import check_searched


def tune_request(**given: Any) -> TuneRequest:
    """What tune is asked for, from texts of the command line or from Python values.

    What a file says that is of no use here is a warning.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    for name, (flag, option) in flags(TuneRequest).items():
        searches = option.opt.group == "Search" and option.field != "start_from"
        if given.get("start_from") and searches and given.get(name) not in (*EMPTY, False):
            raise UsageError(f"--start-from uses a setting without a search: leave {flag} out, or --start-from")
    asked = fields_of(TuneRequest, given, "tune")
    files = _files(asked.pop("config_file", None), asked.get("start_from"))
    for text in (text for file in files.values() for text in file.notes):
        warnings.warn(text, stacklevel=2)
    config = files.get("--config-file") or SettingsFile(engine="")
    engine = _engine(asked.get("engine", ""), asked.get("command", ()), files)
    if not asked.get("engine") and not any(file.engine for file in files.values()):
        asked["engine"] = ""  # settled where it is launched
    else:
        asked["engine"] = engine
    held = _held(engine, config.values, asked.get("knobs", ()))
    _check_threads(asked.get("threads_per_rank"), held)
    asked = {**config.options, **asked}
    _check_search(asked)
    start = asked.get("start_from")
    if isinstance(start, str | Path):
        start = files["--start-from"].values
    return TuneRequest(
        **{
            **asked,
            "np": _processes(asked.get("np"), asked.get("hosts", ())),
            "knobs": tuple(f"{name}={shown_value(value)}" for name, value in held.items()),
            "search": check_searched(engine, asked.get("search", ()), held),
            "start_from": _unopposed(start, held) if start is not None else None,
        }
    )


def _files(config_file: str | None, start_from: str | Path | Values | None) -> dict[str, SettingsFile]:
    files = {"--config-file": read_settings(Path(config_file))} if config_file else {}
    if isinstance(start_from, str | Path):
        files["--start-from"] = read_found(Path(start_from))
    return files


def _engine(asked: str, command: tuple[str, ...], files: Mapping[str, SettingsFile]) -> str:
    """The engine whose knobs these are: as asked, as a file has it, or as the script shows it."""
    if asked and not find_engine(asked).is_tuned:
        raise UsageError(f"engine {asked} {find_engine(asked).why_not_tuned}: use {' or '.join(tunable())}")
    looks = engine_of_script(command) if command else ""
    for option, file in files.items():
        known = asked or (looks if looks != USUAL.name else "")  # it is also what is assumed when nothing shows
        if file.engine and known and file.engine != known:
            raise UsageError(f"{option} is for {file.engine} and this is {known}: name another file, or --engine")
        asked = asked or file.engine
    return asked or looks or USUAL.name


def _held(engine: str, from_file: Values, texts: Sequence[str]) -> Values:
    """What stays fixed; the call outranks the file and must not contradict itself."""
    said: dict[str, KnobValue] = {}
    for text in texts:
        name, value = assignment(text, "--knob", "bucket_cap_mb=25")
        name = knob_name(name)
        parsed = parse_value(_find_knob(engine, name), value.strip())
        if said.setdefault(name, parsed) != parsed:
            raise UsageError(
                f"{name} is fixed at {shown_value(said[name])} and at {shown_value(parsed)}: keep one of them"
            )
    return {**from_file, **said}


def _find_knob(engine: str, name: str) -> Knob:
    known = {**{knob.name: knob for knob in ENGINES[engine].knobs}, THREADS.name: THREADS}
    if name in known:
        return known[name]
    for other in ENGINES.values():
        if name in {knob.name for knob in other.knobs}:
            raise UsageError(
                f"{name} is a knob of {other.name} and this is {engine}: leave it out, or add --engine {other.name}"
            )
    near = did_you_mean(name, known)
    raise UsageError(f"--knob: {engine} has no knob '{plain(name, 60)}'{near}: use one of {', '.join(sorted(known))}")


def _check_threads(threads: int | None, held: Values) -> None:
    if threads and held.get(THREADS.name, threads) != threads:
        raise UsageError(
            f"--threads-per-rank says {threads} and {THREADS.name} is fixed at {held[THREADS.name]}: keep one"
        )


def _check_search(asked: Mapping[str, KnobValue]) -> None:
    """Options of the search that cannot be, told before anything starts."""
    steps, each = asked.get("steps"), asked.get("steps_per_sample")
    if steps and each and int(steps) < int(each):
        raise UsageError(f"--steps {steps} ends the training before one sample of {each} steps: raise it")
    if log_file := asked.get("log_file"):
        check_log_file(Path(str(log_file)), of_autotune=asked.get("method") == "native")


def _unopposed(found: Values, held: Values) -> Values:
    """The setting of a file, if what is fixed leaves it as it is."""
    for name, value in found.items():
        if held.get(name, value) != value:
            raise UsageError(f"--start-from sets {name} to {value} and it is fixed at {held[name]}: leave one out")
    return found


def _processes(count: int | None, hosts: Sequence[Host]) -> int:
    """How many ranks: as asked, all slots of the hosts, or 2."""
    count = count or sum(host.slots for host in hosts) or 2
    if count < 2:
        raise UsageError("one process has no communication to tune: take 2 or more, by --np or --hosts")
    return count
