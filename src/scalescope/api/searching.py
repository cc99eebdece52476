"""What to change."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scalescope.api.silent import Silent
from scalescope.api.workload import workload_of
from scalescope.errors import UsageError
from scalescope.jobs.request import parse_hosts
from scalescope.records.job import KnobValue
from scalescope.records.profile import Scalar, WorkloadSpec
from scalescope.records.tuning import Method, TuneRequest, Tuning, Values
from scalescope.tuner.journal import Audience
from scalescope.tuner.run import tune as run_search
from scalescope.tuner.space import check_searched


def tune(
    model: str | WorkloadSpec = "",
    *,
    command: Sequence[str] = (),
    np: int = 2,
    batch: int | None = None,
    engine: str = "",
    launcher: str = "",
    hosts: str = "",
    method: Method | None = None,
    hold: Mapping[str, KnobValue] | None = None,
    search: Sequence[str] = (),
    start_from: Values | None = None,
    warmup_samples: int | None = None,
    steps_per_sample: int | None = None,
    max_samples: int | None = None,
    gp_noise: float | None = None,
    threads_per_rank: int | None = None,
    env: Mapping[str, str] | None = None,
    launcher_args: Sequence[str] = (),
    model_args: Mapping[str, Scalar] | None = None,
    inputs: Sequence[str] = (),
    steps: int | None = None,
    device: str = "auto",
    timeout_s: float = 600.0,
    oversubscribe: bool = False,
    folder: str | Path = "",
    audience: Audience | None = None,
) -> Tuning:
    """Better knobs for a model, or a command instead; the default is kept unless another setting beats it for sure."""
    if bool(model) == bool(command):
        raise UsageError("name one thing to tune: a model such as 'cnn', or a command")
    request = TuneRequest(
        workload=workload_of(model, model_args, inputs) if model else None,
        command=tuple(command),
        np=np,
        batch=batch,
        engine=engine,
        launcher=launcher,
        hosts=parse_hosts(hosts),
        method=method,
        hold=tuple(f"{name}={value}" for name, value in (hold or {}).items()),
        search=check_searched(engine or "ddp", search, hold or {}),
        start_from=start_from,
        warmup_samples=warmup_samples,
        steps_per_sample=steps_per_sample,
        max_samples=max_samples,
        gp_noise=gp_noise,
        threads_per_rank=threads_per_rank,
        env=dict(env or {}),
        launcher_args=tuple(launcher_args),
        steps=steps,
        device=device,
        timeout_s=timeout_s,
        oversubscribe=oversubscribe,
        folder=str(folder),
    )
    return run_search(request, audience or Silent())[1]
