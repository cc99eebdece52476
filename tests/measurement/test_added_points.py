"""Points that are added to a measurement: what may be added, which rounds they get, and what they are compared with."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from observed import launch as observed
from observed import measurement
from test_sweep import Launches, launches  # noqa: F401

from measurement.made_sweeps import request
from scalescope.errors import UsageError
from scalescope.measurement.resume import plan_of, with_more
from scalescope.measurement.scaling import scaling_of
from scalescope.measurement.sweep import continue_measurement, measure
from scalescope.records.job import Host
from scalescope.records.profile import WorkloadSpec
from scalescope.records.run import Point, RankHost
from scalescope.stats import of_ratio
from told import Told


def rounds_of(asked: list[tuple[int, Point, int]]) -> dict[int, list[int]]:
    """Processes that were launched in every round."""
    found: dict[int, list[int]] = {}
    for number, point, _ in asked:
        found.setdefault(number, []).append(point.np)
    return {number: sorted(counts) for number, counts in found.items()}


def test_added_processes_are_launched_in_new_rounds_with_the_baseline_once_more(launches: Launches) -> None:  # noqa: F811
    folder = measure(request(np=(1, 2), launches=5), Told()).folder
    assert folder
    launches.asked.clear()
    told = Told()
    found = continue_measurement(folder, {"np": (4,)}, told)
    assert rounds_of(launches.asked) == {number: [1, 4] for number in range(6, 11)}
    assert told.notes[0].startswith("20 launches at 3 points; 10 are there already; about ")
    assert [what.split()[1] for what, _, _ in told.stages] == [f"{index}/20" for index in range(11, 21)]
    assert found.stopped == "5 launches of every point were asked for"
    curve = scaling_of(found).curves[0]
    assert [(point.np, point.launches, point.speedup["steady"].count) for point in curve.points] == [
        (1, 10, 10),
        (2, 5, 5),
        (4, 5, 5),
    ]
    assert plan_of(folder).request.np == (1, 2, 4)
    launches.asked.clear()
    continue_measurement(folder, {"np": (4, 2)}, Told())
    assert launches.asked == [], "nothing new was named"


def test_points_of_an_interrupted_addition_are_continued_in_their_round(launches: Launches, tmp_path: Path) -> None:  # noqa: F811
    folder = measure(request(np=(1, 2), launches=2), Told()).folder
    assert folder

    def interrupted(number: int, point: Point) -> None:
        if len(launches.asked) == 2:
            raise KeyboardInterrupt

    launches.asked.clear()
    launches.answers = interrupted
    with pytest.raises(KeyboardInterrupt):
        continue_measurement(folder, {"np": (4,)}, Told())
    done, _ = launches.asked
    launches.answers = lambda number, point: None
    launches.asked.clear()
    continue_measurement(folder, {}, Told())
    assert rounds_of([done, *launches.asked]) == {3: [1, 4], 4: [1, 4]}


def test_another_batch_job_begins_a_round_of_its_own(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def interrupted(number: int, point: Point) -> dict[str, Any]:
        if len(launches.asked) == 4:
            raise KeyboardInterrupt
        return {"batch_job": "slurm 7"}

    launches.answers = interrupted
    with pytest.raises(KeyboardInterrupt) as stopped:
        measure(request(np=(1, 2), launches=2), Told())
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    launches.answers = lambda number, point: {"batch_job": "slurm 8"}
    launches.asked.clear()
    found = continue_measurement(Path(str(stopped.value)), {}, Told())
    assert rounds_of(launches.asked) == {3: [1, 2]}, "both, although one was there: the other would be of another job"
    assert {(run.round, run.batch_job) for run in found.runs} == {(1, "slurm 7"), (2, "slurm 7"), (3, "slurm 8")}


def test_batches_engines_and_kinds_of_scaling_are_added() -> None:
    model = request(workload=WorkloadSpec(model="cnn"), command=(), np=(1, 2), batch=(), engines=())
    assert with_more(model, {"batch": (64,)}) == {"batch": (32, 64)}
    assert with_more(model, {"engines": ("horovod",)}) == {"engines": ("ddp", "horovod")}
    assert with_more(model, {"scaling": ("strong",)}) == {"scaling": ("strong", "weak")}
    assert with_more(model, {"np": (16, 2), "launches": 7}) == {"np": (1, 2, 16), "launches": 7}
    assert with_more(model, {"launches": None}) == {"launches": None}
    hosts = (Host("a", 2), Host("b", 2))
    assert with_more(request(hosts=hosts[:1]), {"hosts": hosts}) == {"hosts": hosts}


@pytest.mark.parametrize(
    ("before", "changes", "complaint"),
    [
        ({"np": (2, 4), "smallest": True}, {"np": (1,)}, "--np 1 would be another baseline for what was measured"),
        ({}, {"batch": (8,)}, "the script alone knew its batch size so far: start a new measurement with --batch"),
        ({}, {"engines": ("horovod",)}, "the script decides its engine: leave --engine out"),
        ({"hosts": (Host("a", 2),)}, {"hosts": (Host("b", 2),)}, "earlier launches ran on a:2: begin with a:2"),
        ({}, {"hosts": (Host("b", 2),)}, "earlier launches ran on no named hosts: leave --hosts out"),
    ],
)
def test_what_would_change_earlier_launches_is_refused(
    before: dict[str, Any], changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        with_more(request(**before), changes)
    assert str(caught.value).startswith(complaint)


def test_threads_that_were_chosen_for_fewer_ranks_are_refused_for_more(launches: Launches) -> None:  # noqa: F811
    folder = measure(request(np=(1,), threads_per_rank=2, launches=1), Told()).folder
    assert folder
    kept = (folder / "plan.json").read_bytes()
    with pytest.raises(
        UsageError, match=r"64 ranks with 2 threads each, as in the launches before, need more than the"
    ):
        continue_measurement(folder, {"np": (64,)}, Told())
    strong = measure(request(np=(1, 2), batch=(8,), scaling=("strong",), launches=1, folder="strong"), Told()).folder
    assert strong
    with pytest.raises(UsageError, match="cannot be shared by 3 processes"):
        continue_measurement(strong, {"np": (3,)}, Told())
    assert (folder / "plan.json").read_bytes() == kept


def test_points_that_share_no_round_with_their_baseline_are_compared_and_named() -> None:
    """As those of separate jobs: Welch's interval over both groups."""
    base = [observed(np=1, round_=number, step_s=0.1 + 0.001 * number) for number in range(1, 6)]
    four = [observed(np=4, round_=number, step_s=0.11 + 0.002 * number) for number in range(6, 11)]
    found = scaling_of(measurement([*base, *four]))
    speedup = found.curves[0].points[1].speedup["steady"]
    expected = of_ratio([4 * run.mean_step_s for run in base], [run.mean_step_s for run in four])
    assert (speedup.value, speedup.low, speedup.high) == pytest.approx(expected[:3])
    assert (speedup.interval, speedup.count) == ("t", 5)
    (warning,) = found.warnings
    assert warning.startswith("ddp-np4-b8: measured apart from ddp-np1-b8, the baseline, so that what changed between")
    few = scaling_of(measurement([*base[:2], *four[:1]])).curves[0].points[1].speedup["steady"]
    assert few.interval == "range"
    assert few.low < few.value < few.high
    assert "apart" not in "".join(scaling_of(measurement([*base, observed(np=4, round_=3)])).warnings)


def test_unlike_hosts_are_named() -> None:
    old, new = (RankHost(name=name, cpu=f"CPU {name}", cores=8, ranks=(0,)) for name in ("n1", "n7"))
    runs = [msgspec.structs.replace(observed(np=np), hosts=(host,)) for np, host in ((1, old), (2, new))]
    (warning,) = scaling_of(measurement(runs)).warnings
    assert warning.startswith("launches ran on unlike hosts, n1 (8 cores of CPU n1) and n7 (8 cores of CPU n7): take")
    third = msgspec.structs.replace(observed(np=2), hosts=(msgspec.structs.replace(old, name="n3"), new))
    (first,) = scaling_of(measurement([*runs, third])).warnings
    assert first == warning, "the first host of a kind is named"
    like = [
        msgspec.structs.replace(run, hosts=(msgspec.structs.replace(old, name=name),))
        for run, name in zip(runs, "ab", strict=True)
    ]
    assert scaling_of(measurement(like)).warnings == ()
