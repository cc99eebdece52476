"""Reads what a user asks of tune: knobs and search options of the call and of files, checked against each other."""

from pathlib import Path
from typing import Any

from scalescope.engines import USUAL, find_engine, tunable
from scalescope.errors import UsageError
from scalescope.jobs.command import engine_of_script
from scalescope.jobs.request import fields_of
from scalescope.options import EMPTY, flags
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.journal import check_log_file
from scalescope.tuner.settings import THREADS, SettingsFile, fixed_knobs, knob_texts, read_found, read_settings
from scalescope.tuner.space import check_searched


def tune_request(**given: Any) -> TuneRequest:
    """Make the request of tune, from texts of the command line or from Python values.

    Raises:
        UsageError: Something cannot be read, or contradicts something else.
    """
    for name, (flag, option) in flags(TuneRequest).items():
        searches = option.opt.group == "Search" and option.field != "start_from"
        if given.get("start_from") and searches and given.get(name) not in (*EMPTY, False):
            raise UsageError(f"--start-from uses a setting without a search: leave {flag} out, or --start-from")
    asked = fields_of(TuneRequest, given, "tune")
    files: dict[str, SettingsFile] = {}
    if config_file := asked.pop("config_file", None):
        files["--config-file"] = read_settings(Path(config_file))
    start = asked.pop("start_from", None)
    if isinstance(start, str | Path):
        files["--start-from"] = read_found(Path(start))
        start = files["--start-from"].values
    engine = _engine(asked.get("engine", ""), asked.get("command", ()), files)
    if not asked.get("engine") and not any(file.engine for file in files.values()):
        asked["engine"] = ""  # resolved where it is launched
    else:
        asked["engine"] = engine

    config = files.get("--config-file") or SettingsFile(engine="")
    fixed = {**config.values, **fixed_knobs(engine, asked.get("knobs", ()))}  # the call outranks the file
    threads = asked.get("threads_per_rank")
    if threads and fixed.get(THREADS.name, threads) != threads:
        raise UsageError(
            f"--threads-per-rank says {threads} and {THREADS.name} is fixed at {fixed[THREADS.name]}: keep one"
        )
    for name, value in (start or {}).items():
        if fixed.get(name, value) != value:
            raise UsageError(f"--start-from sets {name} to {value} and it is fixed at {fixed[name]}: leave one out")

    asked = {**config.options, **asked}
    steps, each = asked.get("steps"), asked.get("steps_per_sample")
    if steps and each and steps < each:
        raise UsageError(f"--steps {steps} ends the training before one sample of {each} steps: raise it")
    if log_file := asked.get("log_file"):
        check_log_file(Path(log_file), of_autotune=asked.get("method") == "native")
    processes = asked.get("np") or sum(host.slots for host in asked.get("hosts", ())) or 2
    if processes < 2:
        raise UsageError("one process has no communication to tune: take 2 or more, by --np or --hosts")
    return TuneRequest(
        **{
            **asked,
            "np": processes,
            "knobs": knob_texts(fixed),
            "search": check_searched(engine, asked.get("search", ()), fixed),
            "start_from": start,
        }
    )


def _engine(asked: str, command: tuple[str, ...], files: dict[str, SettingsFile]) -> str:
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
