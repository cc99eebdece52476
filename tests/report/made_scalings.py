"""Scaling records made by hand: what tables, charts and the terminal are tried on."""

from typing import Literal

from scalescope.records.scaling import BreakEven, Curve, Estimate, Fit, Loss, Scaling, ScalingPoint

NASTY = "</script><img src=x onerror=alert(1)>"
GPUS = (1, 2, 4, 8, 16, 32)
LAB_TRAIN_S = (163, 93, 47, 30, 19, 14)
LAB_INIT_S = (68, 142, 75, 110, 110, 111)
LAB_RATE = (202, 191, 193, 191, 193, 190)


def lab11(what: str = "lab11.csv") -> Scaling:
    """One launch per point to 32 GPUs, from a table; nothing but times and rates is known."""
    points = []
    for np, train_s, init_s, rate in zip(GPUS, LAB_TRAIN_S, LAB_INIT_S, LAB_RATE, strict=True):
        steady, train, end = np * rate / 202, 163 / train_s, 231 / (train_s + init_s)
        losses = (("efficiency", np - steady, steady), ("fixed", steady - train, train), ("init", train - end, end))
        points.append(
            ScalingPoint(
                engine="horovod",
                np=np,
                batch=64,
                throughput=once(np * rate),
                efficiency=once(steady / np),
                speedup={"steady": once(steady), "train": once(train), "end_to_end": once(end)},
                train_s=train_s,
                wall_s=train_s + init_s,
                phases={"init": init_s, "train": train_s},
                waterfall=tuple(Loss(name=name, lost=lost, left=left) for name, lost, left in losses),
                longer_for_90={} if np == 1 else {"train": once(0.45 * np), "end_to_end": once(7.5 * np)},
                break_even={} if np == 1 else {"train": after(0.0), "end_to_end": after(28_000.0 / np + 19_000)},
            )
        )
    fit = Fit(
        fixed_s=8.83,
        fixed_s_error=0.98,
        work=31_280,
        work_error=416,
        fixed_share={"1": 0.054, "2": 0.095, "4": 0.188, "8": 0.294, "16": 0.465, "32": 0.631},
        longer={"32": {"3": 19.5, "10": 25.8, "31": 28.6, "100": 29.6}},
    )
    curve = Curve(engine="horovod", scaling="", baseline_np=1, baseline_engine="horovod", points=tuple(points), fit=fit)
    trust = ("Trust the steady speedup for long trainings: 63 % of the train time on 32 is fixed cost.",)
    return Scaling(what=what, source="table", curves=(curve,), trust=trust)


def measured(
    what: str = "cnn",
    *,
    launches: int = 5,
    interval: Literal["t", "range"] = "t",
    counts: tuple[int, ...] = (1, 2, 4),
    batches: tuple[int, ...] = (16, 32, 64),
    engines: tuple[str, ...] = ("ddp", "horovod"),
    kinds: tuple[str, ...] = ("strong", "weak"),
    ranks_per_node: int | None = None,
) -> Scaling:
    """Two engines, both scalings, three batches, several launches: everything is known."""
    curves = []
    for kind in kinds:
        for batch in batches:
            for engine in engines:
                keys = [("none", 1), *((engine, np) for np in counts)]
                points = []
                for name, np in keys:
                    each = batch / np if kind == "strong" else batch
                    nodes = None if ranks_per_node is None else -(-np // ranks_per_node)
                    points.append(_measured_point(name, np, each, float(batch), launches, interval, nodes))
                curves.append(
                    Curve(
                        engine=engine,
                        scaling=kind,
                        batch=batch,
                        baseline_np=1,
                        baseline_engine="none",
                        points=tuple(points),
                    )
                )
    return Scaling(
        what=what,
        source="measurement",
        curves=tuple(curves),
        trust=("Trust the steady speedup.",),
        findings=("The engine alone costs 3 % on one process.",),
        warnings=("ddp-np4-b32: other programs took [red]0.8[/red] cores",),
    )


def ranges(what: str = "python train.py --model [bold] --lr 1e-3") -> Scaling:
    """Three launches each: ranges, no intervals."""
    return measured(what, launches=3, interval="range", counts=(1, 2, 3, 4), batches=(64,), kinds=("strong",))


def nearly_nothing() -> Scaling:
    """A log that tells one number."""
    points = (ScalingPoint(engine="", np=2, train_s=12.0), ScalingPoint(engine="", np=4))
    return Scaling(
        what="train.log", source="logs", curves=(Curve(engine="", scaling="", baseline_np=None, points=points),)
    )


def after(work: float | None) -> BreakEven:
    """A break-even that was seen once."""
    return BreakEven(value=work, low=work, high=work)


def once(value: float) -> Estimate:
    """A number seen once."""
    return Estimate(value=value, low=value, high=value)


def _measured_point(
    engine: str, np: int, batch: float, asked: float, launches: int, interval: Literal["t", "range"], nodes: int | None
) -> ScalingPoint:
    cost = {"none": 0.0, "ddp": 0.0012, "horovod": 0.0021, "fsdp2": 0.0034}[engine]
    alone_s, step_s = 0.004 + 0.0008 * asked, 0.004 + 0.0008 * batch + cost * (1 + 0.5 * np**0.5)
    work = batch * np / asked
    steady = work * alone_s / step_s
    baseline = engine == "none"
    uneven, warm, around = 0.01 * np, 0.3 + 0.1 * np, 2.2 + 0.4 * np
    steady_s = 200 * step_s
    train_s = steady_s + warm + uneven
    train = work * (200 * alone_s + 0.41) / train_s
    end = work * (200 * alone_s + 0.41 + 2.6) / (train_s + around)
    warm_left = work * (200 * alone_s + 0.4) / (steady_s + warm)
    init_left = work * (200 * alone_s + 0.41 + 2.0) / (train_s + around - 0.6)
    losses = (
        ("efficiency", np - steady, steady),
        ("warmup", steady - warm_left, warm_left),
        ("uneven", warm_left - train, train),
        ("init", train - init_left, init_left),
        ("launch", init_left - end, end),
    )

    def about(value: float, relative: float) -> Estimate:
        apart = 0.0 if baseline else relative
        low, high = value * (1 - apart), value * (1 + 1.2 * apart)
        return Estimate(value=value, low=low, high=high, interval=interval, count=launches)

    never = BreakEven(value=None, low=None, high=None, interval=interval, count=launches)
    late = BreakEven(value=5200.0, low=4100.0, high=7900.0, interval=interval, count=launches)
    return ScalingPoint(
        engine=engine,
        np=np,
        nodes=nodes,
        batch=batch,
        threads_per_rank=1,
        launches=launches,
        step_s=Estimate(value=step_s, low=0.97 * step_s, high=1.03 * step_s, interval=interval, count=launches),
        throughput=Estimate(
            value=batch * np / step_s,
            low=0.97 * batch * np / step_s,
            high=1.03 * batch * np / step_s,
            interval=interval,
            count=launches,
        ),
        efficiency=about(steady / np, 0.04),
        mean_efficiency=steady / np,
        median_efficiency=steady / np * (1.06 if np == 4 and engine == "horovod" else 1.0),
        speedup={"steady": about(steady, 0.04), "train": about(train, 0.06), "end_to_end": about(end, 0.08)},
        train_s=train_s,
        wall_s=train_s + around,
        phases={
            "launch": 0.4,
            "import": 1.6,
            "init": 0.1 * np,
            "build": around - 2.2 - 0.1 * np,
            "warmup": warm,
            "steady": steady_s + uneven,
            "teardown": 0.2,
        },
        steps=200,
        warmup_steps=10,
        fixed_s=warm + uneven,
        waterfall=() if baseline else tuple(Loss(name=name, lost=lost, left=left) for name, lost, left in losses),
        one_time_s=about(warm + around, 0.05),
        longer_for_90={} if baseline else {"train": about(1.0, 0.0), "end_to_end": about(3.7, 0.1)},
        break_even={} if baseline else {"train": never, "end_to_end": late},
    )
