"""Is explain right? Planted late ranks and balanced jobs, and what a fix saves beside what explain says it would."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.shared import LONGEST_S, Unfinished, print_table
from scalescope.api import explain
from scalescope.records.explanation import Explanation

REPEATS = 20
LATE_MS = 20
FOLDER = Path("results") / "bench" / "explain_truth"
ENGINES = {
    "ddp": ("ddp", ""),
    "horovod over gloo": ("horovod", "horovodrun"),
    "horovod over mpi": ("horovod", "mpirun"),
}
LATE, QUIET, BUSY = f"{LATE_MS} ms late", "balanced", "balanced, next to a busy process"
# What is said of such a job and true: two ranks on two cores do exchange and, next to a busy process, do wait.
TRUE = {LATE: ("straggler", "exposed_communication"), QUIET: ("exposed_communication",)}
TRUE[BUSY] = (*TRUE[QUIET], "uneven_ranks")


def explain_truth() -> list[dict[str, Any]]:
    """Late and balanced jobs in turn; a run of this section that ends early is continued by the next one."""
    began = time.monotonic()
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "found.json"
    found: dict[str, list[dict[str, Any]]] = json.loads(kept.read_text()) if kept.exists() else {}
    for _ in range(REPEATS):
        for engine in ENGINES:
            for kind in (QUIET, LATE, BUSY):
                key = f"{engine}, {kind}"
                if len(found.setdefault(key, [])) >= REPEATS:
                    continue
                if time.monotonic() - began > LONGEST_S:
                    raise Unfinished(_rows(found))
                found[key].append(_found(engine, kind))
                kept.write_text(json.dumps(found))
    rows = _rows(found)
    kept.unlink()
    return rows


def _found(engine: str, kind: str) -> dict[str, Any]:
    late_ms = str(LATE_MS if kind == LATE else 0)
    with _busy() if kind == BUSY else nullcontext():
        said = _explained(*ENGINES[engine], "--late-ms", late_ms)
    return {"straggler": said.straggler, "findings": [finding.id for finding in said.findings]}


@contextmanager
def _busy() -> Iterator[None]:
    """One process that computes for half of the time, in turns of 50 ms."""
    words = """import time
while True:
    until = time.time() + 0.05
    while time.time() < until:
        pass
    time.sleep(0.05)
"""
    with subprocess.Popen([sys.executable, "-c", words]) as process:
        try:
            yield
        finally:
            process.kill()


def _explained(engine: str, launcher: str, *options: str, env: dict[str, str] | None = None) -> Explanation:
    """A traced run of the example."""
    command = (sys.executable, "examples/slow_training.py", "--engine", engine, *options)
    folder = FOLDER / "job"
    found = explain(
        command=command, np=(2,), engine=engine, launcher=launcher, env=env, folder=folder, threads_per_rank=1
    )
    assert isinstance(found, Explanation)
    return found


def _rows(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for key, runs in found.items():
        named = [each["straggler"] for each in runs]
        true = TRUE[key.partition(", ")[2]]
        wrong, which = _false([each["findings"] for each in runs], (*true, "first_epoch"))
        rows.append(
            {
                "job": key,
                "runs": len(runs),
                "rank 1 named": named.count(1),
                "rank 0 named": named.count(0),
                "with a false finding": wrong,
                "which": which,
            }
        )
    return rows


def _false(runs: Sequence[Sequence[str]], true: Sequence[str]) -> tuple[int, str]:
    """How many runs have a finding that is not true, and how often each such finding was made."""
    false = [[name for name in each if name not in true] for each in runs]
    names = sorted({name for each in false for name in each})
    return sum(map(bool, false)), ", ".join(f"{name} {sum(name in each for each in false)}" for name in names) or "none"


class Fix(NamedTuple):
    """A slow job, the finding that is expected, and the same job mended."""

    finding: str
    engine: str
    slow: tuple[str, ...]
    mended: tuple[str, ...] = ()
    slow_env: dict[str, str] = {}


FIXES = (
    Fix("straggler", "ddp", ("--late-ms", "20")),
    Fix("straggler", "horovod", ("--late-ms", "20")),
    Fix("input_bound", "ddp", ("--loader-ms", "20"), ("--loader-ms", "20", "--workers", "4")),
    Fix("long_cycle", "horovod", (), (), {"HOROVOD_CYCLE_TIME": "60"}),
    Fix(
        "small_messages",
        "ddp",
        ("--bucket-mb", "0.002", "--layers", "40", "--width", "128"),
        ("--layers", "40", "--width", "128"),
    ),
)
ROUNDS = 3


def explain_fixes() -> list[dict[str, Any]]:
    """Slow and mended jobs by turns; medians over rounds."""
    rows, details = [], []
    for fix in FIXES:
        saved, predicted, gains, before = [], [], [], []
        for _ in range(ROUNDS):
            slow = _explained(fix.engine, "", *fix.slow, env=fix.slow_env)
            mended = _explained(fix.engine, "", *fix.mended)
            found = next((each for each in slow.findings if each.id == fix.finding), None)
            step, then = _step_s(slow), _step_s(mended)
            said = step - step / (1 + found.gain) if found and found.gain is not None else 0.0
            saved.append(step - then)
            predicted.append(said)
            gains.append(step / then)
            before.append(step)
            details.append(
                {
                    "finding": fix.finding,
                    "engine": fix.engine,
                    "before ms": step * 1e3,
                    "after ms": then * 1e3,
                    "saved ms": (step - then) * 1e3,
                    "predicted ms": said * 1e3,
                }
            )
        rows.append(
            {
                "finding": fix.finding,
                "engine": fix.engine,
                "step before ms": median(before) * 1e3,
                "real gain": median(gains),
                "saved ms": median(saved) * 1e3,
                "predicted ms": median(predicted) * 1e3,
                "error %": 100 * (median(predicted) / median(saved) - 1),
            }
        )
    print_table(details)
    return rows


def _step_s(explanation: Explanation) -> float:
    """The typical step while it was traced: what the finding is about."""
    assert explanation.step_s is not None
    return explanation.step_s


SHARDED_FOLDER = Path("results") / "bench" / "explain_fsdp"
SHARDED_SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "sharded.py"
SHARDED = {
    "synchronized": "synchronized_micro_batches",
    "gathered_twice": "second_gathers",
    "small_groups": "small_groups",
    "late": "straggler",
    "balanced": "",
    "synchronized_once": "",
}
# What is said of such trainings and true: two ranks on two cores do exchange, and on a busy machine do wait.
SHARDED_TRUE = ("exposed_communication", "uneven_ranks")


def explain_fsdp() -> list[dict[str, Any]]:
    """Trainings of FSDP2, all kinds in turn; a run of this section that ends early is continued by the next one.

    Needless synchronization, second gathers, small groups and a late rank are to be found; balanced trainings, and an
    accumulation that synchronizes once, are to get none of these. Trainings of one launch follow each other.
    """
    began = time.monotonic()
    SHARDED_FOLDER.mkdir(parents=True, exist_ok=True)
    kept = SHARDED_FOLDER / "found.json"
    found: dict[str, list[list[str]]] = json.loads(kept.read_text()) if kept.exists() else {}
    while len(found.setdefault("balanced", [])) < REPEATS:
        if time.monotonic() - began > LONGEST_S:
            raise Unfinished(_sharded_rows(found))
        for kind, findings in _found_sharded().items():
            found.setdefault(kind, []).append(findings)
        kept.write_text(json.dumps(found))
    rows = _sharded_rows(found)
    kept.unlink()
    return rows


def _found_sharded() -> dict[str, list[str]]:
    """Names of the findings of one training of each kind."""
    folder = SHARDED_FOLDER / "traces"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    around = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([*start, str(SHARDED_SCRIPT), str(folder), *SHARDED], check=True, env=around, capture_output=True)
    found = {}
    for kind in SHARDED:
        told = explain([str(folder / f"{kind}.rank{rank}.json") for rank in range(2)])
        assert isinstance(told, Explanation)
        found[kind] = [finding.id for finding in told.findings]
    return found


def _sharded_rows(found: dict[str, list[list[str]]]) -> list[dict[str, Any]]:
    rows = []
    for kind, planted in SHARDED.items():
        runs = found.get(kind, [])
        wrong, which = _false(runs, (*SHARDED_TRUE, planted))
        rows.append(
            {
                "planted": kind,
                "trainings": len(runs),
                "found": sum(planted in each for each in runs) if planted else "-",
                "with another finding": wrong,
                "which": which,
                "uneven ranks": sum("uneven_ranks" in each for each in runs),
                "nothing at all": sum(not each for each in runs),
            }
        )
    return rows
