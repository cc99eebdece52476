"""Tries a MODEL once in one process before ranks are started: does it work, and how long does a step take."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from scalescope.errors import UsageError, WorkFailed
from scalescope.jobs.plan import Settings, make_task
from scalescope.records.run import Point
from scalescope.records.store import writing
from scalescope.units import format_seconds

_LAUNCH_S = 10.0  # A launch makes so many steps that they take about this long
_FEWEST_STEPS, _MOST_STEPS = 15, 100


def rehearse(settings: Settings, planned: Sequence[Point]) -> tuple[int, float]:
    """How many steps a launch gets, and about how many seconds one launch of every point takes together."""
    request = settings.request
    assert request.workload
    smallest = min(planned, key=lambda point: point.batch or 0)
    path = Path(settings.folder, "rehearsal.json")
    with writing(path):
        path.write_bytes(msgspec.json.encode(make_task(settings, smallest, 1)))
    words = (settings.python, "-m", "scalescope.jobs.train_model", "--check", str(path))
    threads = {"OMP_NUM_THREADS": str(settings.threads_per_rank)}
    started = time.monotonic()
    try:
        answer = subprocess.run(
            words,
            env={**os.environ, **request.env, **threads},
            cwd=settings.cwd or None,
            capture_output=True,
            text=True,
            timeout=request.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkFailed(
            f"the model {request.workload.model} made no step within {format_seconds(request.timeout_s)} in one "
            "process: give it longer with --timeout, or try a smaller --batch"
        ) from None
    if answer.returncode == UsageError.exit_code:
        raise UsageError((answer.stderr.strip().splitlines() or [f"{request.workload.model} cannot be built"])[-1])
    if answer.returncode:
        raise WorkFailed(f"the model {request.workload.model} failed on its own:\n{answer.stderr.strip()[-3000:]}")
    overhead_s = time.monotonic() - started
    step_s = float(msgspec.json.decode(answer.stdout.splitlines()[-1])["step_s"])
    per_sample_s = step_s / (smallest.batch or 1)
    largest_s = per_sample_s * max(point.batch or 1 for point in planned)
    steps = request.steps or min(max(int(_LAUNCH_S / max(largest_s, 1e-6)), _FEWEST_STEPS), _MOST_STEPS)
    seconds = sum(2 * overhead_s + steps * per_sample_s * (point.batch or 1) for point in planned)
    return steps, seconds
