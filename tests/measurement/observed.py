"""Observations and runs made by hand."""

from scalescope.measurement.observation import Observation
from scalescope.records.run import Measurement, Point, Run

LAB11_TRAIN_S = {1: 163, 2: 93, 4: 47, 8: 30, 16: 19, 32: 14}


def launch(
    engine: str = "ddp",
    np: int = 1,
    round_: int = 1,
    step_s: float = 0.1,
    *,
    batch: int | None = 8,
    steps: int = 20,
    warmup_steps: int = 1,
    first_s: float = 1.0,
    around_s: float = 3.0,
    samples: bool = True,
) -> Run:
    """A launch of `steps` steps, the first of which took `first_s`, with `around_s` before and after them."""
    point = Point(engine=engine, np=np, batch=batch, threads_per_rank=1)
    per_step = float(point.global_batch) if samples and point.global_batch else None
    steady_s = (steps - warmup_steps) * step_s
    phases = {"launch": around_s / 3, "import": around_s / 3, "warmup": first_s * warmup_steps, "steady": steady_s}
    phases["teardown"] = around_s / 3
    return Run(
        point=point,
        round=round_,
        folder="",
        wall_s=sum(phases.values()),
        phases=phases,
        steps=steps,
        warmup_steps=warmup_steps,
        step_s=step_s,
        mean_step_s=step_s,
        throughput=per_step / step_s if per_step else None,
        samples_per_step=per_step,
        engine_seen=engine,
        backend="gloo",
        source="optimizer",
        ranks=(),
    )


def measurement(
    runs: list[Run],
    scaling: tuple[str, ...] = ("weak",),
    batch: tuple[int, ...] = (8,),
    *,
    precision: float | None = None,
    quick: bool = False,
) -> Measurement:
    """A measurement that holds these launches."""
    return Measurement(
        what="cnn",
        scaling=scaling,
        batch=batch,
        quick=quick,
        precision=precision,
        created="",
        scalescope="",
        torch="",
        host="here",
        cores=2,
        launcher={"ddp": "torchrun"},
        binding="none",
        runs=tuple(runs),
    )


def observation(np: int, rate: float, *, work: float = 1000.0, round_: int = 1, **parts: float) -> Observation:
    """One run whose time is steady work and these parts."""
    return Observation(engine="ddp", np=np, round=round_, rate=rate, work=work, parts=parts)
