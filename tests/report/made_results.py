"""Results of several verbs made by hand, in memory and as result folders: what the page and compare are tried on."""

from pathlib import Path

import made_explanation
import made_predictions
import made_scalings
import made_tunings
import msgspec

from scalescope.jobs.folders import result_folder
from scalescope.records.prediction import Prediction
from scalescope.records.request import Fingerprint, MeasureRequest, Plan
from scalescope.records.results import Results, RunInfo
from scalescope.records.scaling import Estimate, Scaling, ScalingPoint
from scalescope.records.store import Record, save

HOSTILE = (
    "\\input{x}</script><img src=x onerror=alert(1)>{{ 7*7 }}\u202egnp.exe\u200b\x1b]0;owned\x07\x1b[31mred\x1b[0m "
    "<script>document.title='owned'</script> =HYPERLINK(1) $x$ & 100 % _ 'quoted' \"twice\" "
) + "long" * 2500
MACHINE = Fingerprint(host="node1", cpu="Xeon", cores=8, gpus=("H200",), python="3.11.7", torch="2.13.0")


def curves(what: str = "cnn", *, slower: float = 1.0, **more: object) -> Scaling:
    """Weak and strong scaling of DDP with one batch; every step takes `slower` times as long."""
    made = made_scalings.measured(what, batches=(32,), engines=("ddp",), **more)  # type: ignore[arg-type]

    def times(estimate: Estimate, factor: float) -> Estimate:
        ends = {name: factor * getattr(estimate, name) for name in ("value", "low", "high")}
        return msgspec.structs.replace(estimate, **ends)

    def scaled(point: ScalingPoint) -> ScalingPoint:
        assert point.step_s
        assert point.throughput
        step, rate = times(point.step_s, slower), times(point.throughput, 1 / slower)
        return msgspec.structs.replace(point, step_s=step, throughput=rate)

    own = tuple(msgspec.structs.replace(curve, points=tuple(map(scaled, curve.points))) for curve in made.curves)
    return msgspec.structs.replace(made, curves=own)


def with_steady(scaling: Scaling, low: float, high: float) -> Scaling:
    """The curves with this interval as the steady speedup of all points of several processes, over one process."""
    steady = Estimate(value=(low + high) / 2, low=low, high=high, interval="t", count=5)

    def faster(point: ScalingPoint) -> ScalingPoint:
        return msgspec.structs.replace(point, speedup={**point.speedup, "steady": steady}) if point.np > 1 else point

    curves = [
        msgspec.structs.replace(curve, baseline_np=1, points=tuple(map(faster, curve.points)))
        for curve in scaling.curves
    ]
    return msgspec.structs.replace(scaling, curves=tuple(curves))


def full(what: str = "cnn") -> Results:
    """Predicted, measured, explained and tuned."""
    return Results(
        name="study",
        prediction=msgspec.structs.replace(made_predictions.checked(), what=what),
        cluster=made_predictions.cluster(),
        scaling=curves(what),
        explanations=(msgspec.structs.replace(made_explanation.compared(), what=what),),
        traced_batches=(32,),
        tuning=made_tunings.two_hosts(what),
        settings=("DistributedDataParallel(model, bucket_cap_mb=1.0)",),
        done=(RunInfo(verb="measure", folder="m", command=f"scalescope measure {what}", seed=7, fingerprint=MACHINE),),
        follow=f"scalescope measure {what} --np 4",
    )


def hostile() -> Results:
    """Everything that a user can name is named to do harm."""
    base = full(HOSTILE)
    named = msgspec.structs.replace
    span = base.explanations[0].shown_step
    assert span
    assert base.scaling
    assert base.prediction
    assert base.tuning
    shown = named(span, spans=tuple(named(each, name=HOSTILE) for each in span.spans))
    findings = tuple(
        named(each, sentence=HOSTILE, change=HOSTILE, evidence={HOSTILE: HOSTILE})
        for each in base.explanations[0].findings
    )
    explanation = named(
        base.explanations[0], engine=HOSTILE, backend=HOSTILE, shown_step=shown, findings=findings, notes=(HOSTILE,)
    )
    scaling = named(
        base.scaling,
        warnings=(HOSTILE,),
        trust=(HOSTILE,),
        curves=tuple(
            named(
                curve,
                engine=HOSTILE,
                points=tuple(named(each, engine=HOSTILE) if each.np > 1 else each for each in curve.points),
            )
            for curve in base.scaling.curves
        ),
    )
    machine = named(MACHINE, host=HOSTILE, cpu=HOSTILE, gpus=(HOSTILE,))
    return named(
        base,
        name=HOSTILE,
        prediction=named(base.prediction, engine=HOSTILE, warnings=(HOSTILE,)),
        scaling=scaling,
        explanations=(explanation,),
        tuning=named(base.tuning, engine=HOSTILE, notes=(HOSTILE,)),
        settings=(HOSTILE,),
        done=(RunInfo(verb="measure", folder=HOSTILE, command=HOSTILE, fingerprint=machine),),
        follow=HOSTILE,
        missing=(HOSTILE,),
    )


def folder_of(place: Path, verb: str, **records: Record) -> Path:
    """A result folder of ours with these records, `estimate=...` as estimate.json."""
    with result_folder(verb, place) as made:
        for name, record in records.items():
            save(record, made / f"{name}.json")
    return place


def folders(place: Path, what: str = "cnn") -> list[Path]:
    """One folder per verb, as the verbs leave them."""
    results = full(what)
    request = MeasureRequest(command=("python", "train.py"), np=(1, 2, 4), batch=(32,), seed=11, launches=7)
    plan = Plan(request=request, cwd="/", since_ns=0, fingerprint=MACHINE)
    prediction = results.prediction
    assert isinstance(prediction, Prediction)
    assert results.scaling
    assert results.tuning
    return [
        folder_of(place / "estimate", "estimate", estimate=prediction),
        folder_of(place / "measure", "measure", scaling=results.scaling, plan=plan),
        folder_of(place / "explain", "explain", explanation=results.explanations[0]),
        folder_of(place / "tune", "tune", tuning=results.tuning),
    ]
