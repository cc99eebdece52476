"""`with scalescope.tuning(ddp_model):` tunes inside a script; `apply_tuned` uses what was found."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from scalescope.errors import UsageError
from scalescope.measurement.folders import check_record, emptied, result_folder
from scalescope.records.knobs import KnobValue
from scalescope.records.store import save
from scalescope.records.tuning import TuneRequest
from scalescope.tuner.journal import PLAN, TunePlan
from scalescope.tuner.settings import read_found
from scalescope.tuner.space import parse_held

TRAINING = "training"
_BESIDE = "scalescope.cli.tune_beside"
_FINISH_WITHIN_S = 120.0


@contextlib.contextmanager
def tuning(
    model: Any,
    *,
    hold: Mapping[str, KnobValue] | None = None,
    warmup_samples: int | None = None,
    steps_per_sample: int | None = None,
    max_samples: int | None = None,
    gp_noise: float | None = None,
    folder: str | Path = "",
) -> Iterator[Path]:
    """Tune the wrapped model while the body trains it; on every rank. The folder of the results is of rank 0.

    The winner stays in force afterwards. A body that ends before anything is decided leaves the model as it was.
    """
    import torch.distributed as dist

    from scalescope.agent.knobs import refusal_of
    from scalescope.agent.pilot import Conductor, FilePilot

    if type(model).__name__ != "DistributedDataParallel":
        raise UsageError("tuning() takes the model that DistributedDataParallel made: wrap it first")
    if refused := refusal_of(model):
        raise UsageError(f"this model cannot be tuned: {refused}")
    place = Path(folder or Path("results") / "tune").absolute()
    request = TuneRequest(
        command=tuple(sys.argv),
        np=dist.get_world_size(),
        engine="ddp",
        hold=tuple(f"{name}={value}" for name, value in (hold or {}).items()),
        warmup_samples=warmup_samples,
        steps_per_sample=steps_per_sample,
        max_samples=max_samples,
        gp_noise=gp_noise,
    )
    held = parse_held("ddp", request.hold)
    with contextlib.ExitStack() as until_the_end:
        is_first = dist.get_rank() == 0
        if is_first:
            place = until_the_end.enter_context(result_folder("tune", folder))
            check_record(place / PLAN, TunePlan)
            emptied(place / TRAINING, "launch")
        if held:
            _switch(model, held)
        search = _begin_search(request, place) if is_first else None
        conductor = Conductor(FilePilot(str(place / TRAINING)), model)
        conductor.attach()
        try:
            yield place
        finally:
            conductor.close("the body of tuning() ended after fewer than three steps")
            if conductor.values and not conductor.is_decided:
                _switch(model, held)
            if search is not None:
                _finish(search)


def apply_tuned(model: Any, settings: str | Path) -> None:
    """Give a wrapped model the setting of a file that tune wrote; on every rank, between steps."""
    found = read_found(Path(settings))
    if found.engine not in ("", "ddp"):
        raise UsageError(f"{settings} is a setting of {found.engine}: its variables are in the file beside it")
    _switch(model, dict(found.values))


def _switch(model: Any, values: Mapping[str, KnobValue]) -> None:
    from scalescope.engines import ddp_live, hierarchical

    if values.get("hierarchical_allreduce"):
        hierarchical.prepare(model.process_group)
    ddp_live.switch(model, dict(values))


def _begin_search(request: TuneRequest, place: Path) -> "subprocess.Popen[bytes]":
    """The search runs in a process of its own, beside the training of rank 0."""
    request = msgspec.structs.replace(request, folder=str(place))
    save(TunePlan(request=request, cwd=str(Path.cwd())), place / PLAN)
    return subprocess.Popen([sys.executable, "-m", _BESIDE, str(place)], stdin=subprocess.PIPE)


def _finish(search: "subprocess.Popen[bytes]") -> None:
    """The end of its input tells the search that the training is over; it says its answer and ends."""
    assert search.stdin
    search.stdin.close()
    try:
        search.wait(timeout=_FINISH_WITHIN_S)
    except subprocess.TimeoutExpired:
        search.kill()
        search.wait()
