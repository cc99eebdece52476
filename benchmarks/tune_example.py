"""The examples' scripts tuned unchanged, here and on two hosts with slow links, then measured with what was found.

Where the default is kept, what was compared with it last is measured: is it really no faster?
"""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared import Unfinished, lab_of, print_table, scalescope_words
from scalescope.records.run import Measurement
from scalescope.records.store import load
from scalescope.records.tuning import Tuning, Values
from scalescope.stats import of_logarithms

FOLDER = Path("results") / "bench" / "tune_example"
LAUNCHES = 6  # Of each, one of the default after one of the other
TRAINS = ("--epochs", "2", "--batch-size", "8")


class Case(NamedTuple):
    """A script, how its ranks talk, and how fast the link between two hosts is; without a rate: two ranks here."""

    name: str
    script: tuple[str, ...]
    launcher: str = ""
    rate: str = ""
    each: int = 2  # Ranks of a host


DDP = ("examples/train_ddp.py", *TRAINS, "--samples", "9600")
HOROVOD = ("examples/train_horovod.py", *TRAINS, "--samples", "9600")
CASES = (
    Case("DDP, 2 hosts, 50 Mbit/s", DDP, rate="50mbit"),
    Case("Horovod over MPI, loopback", HOROVOD, "mpirun"),
    Case("Horovod over Gloo, loopback", HOROVOD, "horovodrun"),
    Case("Horovod over MPI, 2 hosts, 200 Mbit/s", HOROVOD, "mpirun", "200mbit"),
    # One rank of each: those of Gloo spin while they wait, and two hosts out of namespaces share the cores of this one.
    Case("Horovod over Gloo, 2 hosts x 1 rank, 200 Mbit/s", HOROVOD, "horovodrun", "200mbit", 1),
)


def tune_example() -> list[dict[str, Any]]:
    """One case in a run of this section, since it takes minutes; the next one goes on with the next."""
    left = [case for case in CASES if not _finished(case).exists()]
    if not left:
        for case in CASES:
            _finished(case).unlink()
        left = list(CASES)
    _finished(left[0]).parent.mkdir(parents=True, exist_ok=True)
    _finished(left[0]).write_text(json.dumps(_tuned_and_measured(left[0])))
    rows = [row for case in CASES if _finished(case).exists() for row in json.loads(_finished(case).read_text())]
    if left[1:]:
        raise Unfinished(rows)
    return rows


def _finished(case: Case) -> Path:
    return FOLDER / f"{case.name.replace('/', ' ')}.json"


def _tuned_and_measured(case: Case) -> list[dict[str, Any]]:
    """Everything is started on the first host, as a user would."""
    with lab_of(2, case.rate) if case.rate else nullcontext() as lab:
        found = load(_done(case, lab, "tune") / "tuning.json", Tuning)
        rows = [_tuned_row(case, found)]
        print_table(rows)
        other = found.values or found.finalist
        if not other:
            return rows
        steps: dict[str, list[float]] = {"default": [], "other": []}
        for _ in range(LAUNCHES):
            for what, values in (("default", {}), ("other", other)):
                runs = load(_done(case, lab, "measure", values) / "measurement.json", Measurement).runs
                steps[what] += [run.mean_step_s for run in runs]
    gain = of_logarithms([one / two for one, two in zip(*steps.values(), strict=True)])
    for what, times in (("the default", steps["default"]), (f"with {_shown(other)}", steps["other"])):
        middle = of_logarithms(times)
        told = f"{1e3 * middle.middle:.1f} ({1e3 * middle.low:.1f} to {1e3 * middle.high:.1f})"
        rows.append({"training": case.name, "what": f"measure, {what}", "step, ms": told})
    rows[-1]["gain"] = f"{gain.middle:.2f}x ({gain.low:.2f} to {gain.high:.2f})"
    return rows


def _done(case: Case, lab: Any, verb: str, values: Values | None = None) -> Path:
    """Where a verb left its results."""
    folder = FOLDER / verb
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    words = [verb, "--np", "2", "--threads-per-rank", "1", "-o", str(folder), "--quiet"]
    if lab is not None:
        words[2] = str(case.each * len(lab.names))
        words += ["--hosts", ",".join(f"{host}:{case.each}" for host in lab.names)]
    words += ["--launcher", case.launcher] if case.launcher else []
    words += ["--launches", "1", "--steps", "80"] if verb == "measure" else []
    words += [word for knob, value in (values or {}).items() for word in ("--knob", f"{knob}={value}")]
    command = scalescope_words(*words, "--", sys.executable, *case.script)
    if lab is None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    else:
        lab.run("h1", command, check=True, stdout=subprocess.DEVNULL)
    return folder


def _shown(values: Values) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _tuned_row(case: Case, found: Tuning) -> dict[str, Any]:
    setting = f"use {_shown(found.values)}" if found.values else "keep the default"
    gain, times = found.gain, [found.default_step_s, found.winner_step_s]
    return {
        "training": case.name,
        "what": f"tune: {setting}" + ("" if found.decision != "undecided" else f", {found.decision}"),
        "step, ms": " to ".join(f"{1e3 * each:.1f}" for each in times if each),
        "gain": f"{1 + gain.value:.2f}x ({1 + gain.low:.2f} to {1 + gain.high:.2f})" if gain else "",
        "samples": sum(sample.phase != "confirm" for sample in found.samples),
        "search steps": found.cost.search_steps,
        "confirmation steps": found.cost.confirm_steps,
        "time lost, s": found.cost.lost_s,
    }
