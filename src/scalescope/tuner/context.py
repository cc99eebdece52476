"""`with scalescope.tuning(ddp_model):` tunes inside a script; `apply_tuned` uses what was found."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scalescope.engines import DDP
from scalescope.errors import ScalescopeError, UsageError
from scalescope.jobs.folders import check_record, emptied, result_folder
from scalescope.progress import Progress
from scalescope.records.files import PLAN
from scalescope.records.job import KnobValue
from scalescope.records.store import load, save
from scalescope.records.tuning import TuneRequest, Tuning
from scalescope.tuner.journal import TunePlan
from scalescope.tuner.settings import fixed_knobs, knob_texts, read_found
from scalescope.tuner.space import check_searched

TRAINING = "training"
_FINISH_WITHIN_S = 120.0


@contextlib.contextmanager
def tuning(
    model: Any,
    *,
    knobs: Mapping[str, KnobValue] | None = None,
    search: Sequence[str] = (),
    warmup_samples: int | None = None,
    steps_per_sample: int | None = None,
    max_samples: int | None = None,
    gp_noise: float | None = None,
    folder: str | Path = "",
) -> Iterator[Path]:
    """Tune the wrapped model while the body trains it; on every rank. The folder of the results is of rank 0.

    The winner stays afterwards. A body that ends before anything is decided leaves the model as it was, and so
    does a search that fails; a model that cannot be tuned is trained all the same.
    """
    import torch.distributed as dist

    from scalescope.agent.recorder import say
    from scalescope.agent.search_client import SearchClient
    from scalescope.agent.search_files import FileController
    from scalescope.engines.ddp_training_live import DdpTraining

    if type(model).__name__ != "DistributedDataParallel":
        raise UsageError("tuning() takes the model that DistributedDataParallel made: wrap it first")
    request = TuneRequest(
        command=tuple(sys.argv),
        np=dist.get_world_size(),
        engine=DDP.name,
        knobs=knob_texts(knobs or {}),
        search=check_searched(DDP.name, search, knobs or {}),
        warmup_samples=warmup_samples,
        steps_per_sample=steps_per_sample,
        max_samples=max_samples,
        gp_noise=gp_noise,
    )
    with contextlib.ExitStack() as until_the_end:
        place, process, refused = _begin(model, request, folder, until_the_end)
        if refused:
            if dist.get_rank() == 0:
                say(f"not tuned: {refused}; the training goes on as it is")
            yield place
            return
        controller = FileController(str(place / TRAINING), lambda: process is None or process.poll() is None)
        client = SearchClient(controller, DdpTraining(model))
        client.attach()
        try:
            yield place
        finally:
            client.close("the body of tuning() ended after fewer than three steps")
            if not client.is_decided:
                client.restore()


def _begin(
    model: Any, request: TuneRequest, folder: str | Path, until_the_end: contextlib.ExitStack
) -> tuple[Path, "subprocess.Popen[bytes] | None", str]:
    """Begin rank 0's search, on every rank: its folder, its process, or why there is none; raises on all ranks."""
    from scalescope.engines.ddp_training_live import TorchControlGroup, cannot_agree, refusal_of
    from scalescope.engines.group_live import objection

    place = Path(folder or Path("results") / "tune").absolute()
    process: subprocess.Popen[bytes] | None = None
    fixed = fixed_knobs(DDP.name, request.knobs)
    if refused := cannot_agree(model):
        return place, None, refused
    group = TorchControlGroup(model.process_group)
    if refused := group.agree(objection(lambda: refusal_of(model))):
        return place, None, refused
    wrong = ""
    if group.rank == 0:
        try:
            place = until_the_end.enter_context(result_folder("tune", folder))
            check_record(place / PLAN, TunePlan)
            emptied(place / TRAINING, "launch")
            request = msgspec.structs.replace(request, folder=str(place))
            save(TunePlan(request=request, cwd=str(Path.cwd())), place / PLAN)
            words = [sys.executable, "-m", "scalescope", "tune", "--join", str(place)]
            process = subprocess.Popen(words, stdin=subprocess.PIPE)
            until_the_end.callback(_finish, process)
        except UsageError as problem:
            wrong = str(problem)
        except Exception as problem:  # such as a full disk, which is no reason not to train
            refused = str(problem)
    wrong, refused = group.agree(wrong), group.agree(refused)
    if fixed and not wrong and not refused:
        wrong = group.agree(objection(lambda: _switch(model, fixed)))
        if wrong:
            _switch(model, {})
    if wrong:
        raise UsageError(wrong)
    return place, process, refused


def apply_tuned(model: Any, settings: str | Path) -> None:
    """Give a wrapped model the setting of a file that tune wrote; on every rank, between steps."""
    found = read_found(Path(settings))
    if found.engine not in ("", DDP.name):
        raise UsageError(f"{settings} is a setting of {found.engine}: its variables are in the .env file next to it")
    _switch(model, dict(found.values))


def _switch(model: Any, values: Mapping[str, KnobValue]) -> None:
    from scalescope.engines import ddp_live

    if values.get("hierarchical_allreduce"):
        ddp_live.groups_by_hosts(model)
    ddp_live.switch(model, dict(values))


def search_for(folder: Path, progress: Progress) -> Tuning | None:
    """Search for the training of `tuning` in this folder until it is decided or our input ends; None: it was given up.

    Runs in the process that `tuning` starts next to rank 0, which knows why a search is given up.
    """
    from scalescope.tuner.online import OnlineSearch
    from scalescope.tuner.search import prepare

    prepare()
    request = load(folder / PLAN, TunePlan).request
    over = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
    search = OnlineSearch(
        request, folder, folder / TRAINING, fixed_knobs(DDP.name, request.knobs), progress, over.is_set
    )
    try:
        search.run()
        return search.found()
    except ScalescopeError:
        if search.has_given_up:
            return None
        raise


def _wait_for_the_end(over: threading.Event) -> None:
    """Wait until rank 0, which holds the other end of our input, closes it or dies."""
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be in the way when this process ends first
        pass
    over.set()


def _finish(search: "subprocess.Popen[bytes]") -> None:
    """End the search: the end of its input tells it that the training is over, and it prints its answer."""
    assert search.stdin
    search.stdin.close()
    try:
        search.wait(timeout=_FINISH_WITHIN_S)
    except subprocess.TimeoutExpired:
        search.kill()
        search.wait()
