"""What requests say of themselves: how often they launch, what they are called, and where ranks go."""

from typing import Any

import msgspec
import pytest

from scalescope.records.job import Ending, Host, Job, Knobs, place
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import QUICK_PRECISION, SCALINGS, MeasureRequest, launch_of
from scalescope.records.study import Study, StudyPart, StudyRequest
from scalescope.records.tuning import TuneRequest

HOSTS = (Host("a", 2), Host("b", 0), Host("c", 3))
MODEL = WorkloadSpec(model="cnn")
PARTS = (
    StudyPart(name="estimate", what="predict", used_s=3.0, state="done"),
    StudyPart(name="measure", what="launch", used_s=4.0),
)


@pytest.mark.parametrize(
    ("np", "placed"),
    [
        (1, (("a", 1),)),
        (2, (("a", 2),)),
        (3, (("a", 2), ("c", 1))),
        (5, (("a", 2), ("c", 3))),
        (0, ()),
    ],
)
def test_hosts_are_filled_one_after_another(np: int, placed: tuple[tuple[str, int], ...]) -> None:
    assert place(np, HOSTS, oversubscribe=False) == placed
    assert place(np, HOSTS, oversubscribe=True) == placed


def test_the_last_host_takes_what_is_left_only_where_that_is_allowed() -> None:
    assert place(7, HOSTS, oversubscribe=False) == (("a", 2), ("c", 3))
    assert place(7, HOSTS, oversubscribe=True) == (("a", 2), ("c", 5))
    assert place(7, HOSTS[:1], oversubscribe=True) == (("a", 7),)
    assert place(7, (), oversubscribe=True) == ()


def test_a_job_places_its_ranks_on_its_hosts() -> None:
    job = Job(
        command=("x",),
        np=7,
        knobs=Knobs(engine="ddp"),
        folder="/f",
        launch="l",
        threads_per_rank=1,
        hosts=HOSTS,
    )
    assert job.ranks_per_host == (("a", 2), ("c", 3))
    assert msgspec.structs.replace(job, oversubscribe=True).ranks_per_host == (("a", 2), ("c", 5))


def test_a_launch_lasts_from_the_start_of_its_launcher_to_its_end() -> None:
    ending = Ending(started_ns=2_000_000_000, ended_ns=5_500_000_000, started_wall_ns=9)
    assert ending.wall_s == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({}, 5),
        ({"precision": 0.05}, 30),
        ({"quick": True}, 1),
        ({"quick": True, "precision": 0.05}, 1),
        ({"launches": 7, "quick": True, "precision": 0.05}, 7),
    ],
)
def test_a_point_is_launched_five_times_or_as_the_request_says(asked: dict[str, Any], most: int) -> None:
    assert MeasureRequest(**asked).most_launches == most


def test_quick_launches_end_at_five_percent_and_scaling_has_three_words() -> None:
    assert QUICK_PRECISION == 0.05
    assert SCALINGS == {"strong": ("strong",), "weak": ("weak",), "both": ("strong", "weak")}


def test_requests_that_launch_pass_on_the_options_of_launches() -> None:
    said: dict[str, Any] = {
        "command": ("python", "x.py"),
        "launcher": "mpirun",
        "hosts": HOSTS,
        "env": {"A": "1"},
        "launcher_args": ("-v",),
        "device": "cpu",
        "timeout_s": 7.0,
        "ssh": "rsh",
        "oversubscribe": True,
        "nodes": (2,),
        "per_node": 4,
        "submit": "slurm",
        "site": "site.toml",
        "patience_s": 60.0,
        "no_wait": True,
    }
    for request in (MeasureRequest(**said), TuneRequest(**said), StudyRequest(**said)):
        assert launch_of(request) == {"workload": None, **said}


def test_a_study_adds_up_its_parts_and_replaces_one_by_name() -> None:
    study = Study(what="cnn", budget_s=300.0, parts=PARTS)
    assert study.used_s == 7.0
    assert study.part("measure") is PARTS[1]
    done = msgspec.structs.replace(PARTS[1], state="done", used_s=9.0)
    assert study.with_part(done).parts == (PARTS[0], done)
    assert study.with_part(done).used_s == 12.0
    assert study.with_part(msgspec.structs.replace(done, name="tune")).parts == PARTS
