"""Horovod's knobs change between the steps of real ranks, over MPI and over Gloo, and nothing else changes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import needs
from controlled import one, sample
from scalescope.engines import find_engine
from scalescope.engines.horovod_switch_live import MOST_SWITCHES, _as_variables, loadable
from scalescope.jobs.interpreter import why_not_live
from watched import HOOKED, Watched

SCRIPT = Path(__file__).parents[1] / "scripts" / "horovod_ranks.py"
LAUNCHERS = {
    "mpi": ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"),
    "gloo": (str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"),
}
DIRECTIVES = [
    {"kind": "warmup", "steps": 3},
    {"kind": "survey", "steps": 2},
    sample(0, {}, 4),
    sample(0, {"fusion_threshold_mb": 0.01, "cycle_time_ms": 100.0}, 4),
    sample(0, {"fusion_threshold_mb": 0.0, "cycle_time_ms": 0.5, "cache_capacity": 0}, 4),
    sample(0, {"cache_capacity": 0}, 4),  # no copy can be made
    sample(0, {"cycle_time_ms": 9.0}, 4),  # cannot be started
    sample(0, {"fusion_threshold_mb": 64.0, "cycle_time_ms": 2.0}, 4),
    sample(0, {}, 4),
]


class Launch:
    """What a launch of the script told and noted."""

    def __init__(self, controller: str, folder: Path, last: dict[str, Any], **env: str) -> None:
        folder.mkdir()
        for number, directive in enumerate([*DIRECTIVES, last]):
            (folder / f"later-{number:05d}.json").write_text(json.dumps({**directive, "id": number}))
        around = {"SCALESCOPE_TUNE": "1", "SCALESCOPE_FOLDER": str(folder), "PYTHONPATH": HOOKED}
        around |= {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "STEPS": "131", **env}
        command = [*LAUNCHERS[controller], sys.executable, str(SCRIPT)]
        self.done = subprocess.run(
            command, env={**os.environ, **around}, cwd=folder, capture_output=True, text=True, timeout=240, check=False
        )
        self.said = self.done.stdout + self.done.stderr
        assert self.done.returncode == 0, self.said
        self.lines = [json.loads(line) for line in (folder / "reports.jsonl").read_text().splitlines()]
        self.samples = {line["id"]: line for line in self.lines if line["kind"] == "sample"}
        self.noted = [json.loads((folder / f"noted-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module", params=list(LAUNCHERS))
def switched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Over MPI the winner is put in force; over Gloo, with knobs set at launch, ranks end up with uneven inputs."""
    needs.horovod()
    folder = tmp_path_factory.mktemp("horovod") / "training"
    if request.param == "mpi":
        needs.openmpi()
        return Launch("mpi", folder, {"kind": "free", "values": {"fusion_threshold_mb": 1.0, "cycle_time_ms": 2.0}})
    around = {"HOROVOD_FUSION_THRESHOLD": "1048576", "HOROVOD_CYCLE_TIME": "1.5"}
    return Launch("gloo", folder, sample(0, {"cycle_time_ms": 30.0}, 1000), UNEVEN="1", **around)


def test_a_switched_training_ends_with_the_parameters_and_results_of_the_plain_one(switched: Launch) -> None:
    assert len({noted[kind] for noted in switched.noted for kind in ("plain", "tuned")}) == 1


def test_knobs_are_in_force_while_they_are_measured(switched: Launch) -> None:
    typical = {number: median(each["step_ns"]) for number, each in switched.samples.items() if each["step_ns"]}
    assert set(typical) >= {2, 3, 4, 7, 8}
    assert typical[3] > 60_000_000  # ranks agree every 100 ms
    assert switched.samples[2]["switch_ns"] == 0
    assert all(switched.samples[number]["switch_ns"] > 0 for number in (3, 4, 7))


def test_the_search_receives_the_current_values_and_the_number_of_switches(switched: Launch) -> None:
    hello = one(switched.lines, "hello")
    set_at_launch = hello["backend"] == "gloo"
    assert hello["current"] == {
        "fusion_threshold_mb": 1.0 if set_at_launch else 128.0,
        "cycle_time_ms": 1.5 if set_at_launch else 1.0,
        "cache_capacity": 1024,
        "hierarchical_allreduce": False,
        "torus_allreduce": False,
    }
    assert (hello["engine"], hello["world_size"], len(hello["hosts"])) == ("horovod", 2, 2)
    assert 30 < hello["most_switches"] < MOST_SWITCHES
    assert len(one(switched.lines, "survey")["survey"]["gradients"]) == 12


def test_a_switch_that_fails_leaves_all_ranks_with_what_they_had_at_first(switched: Launch) -> None:
    assert "No space left on device" in switched.samples[5]["problem"]
    assert "could not be started" in switched.samples[6]["problem"]
    assert switched.samples[5]["step_ns"] == switched.samples[6]["step_ns"] == []
    assert [number for number, each in switched.samples.items() if each["problem"]] == [5, 6]


def test_files_and_threads_stay_few_and_no_copy_lies_around(switched: Launch) -> None:
    for noted in switched.noted:
        assert noted["copies"] == []
        assert noted["files"] < 10 * len(DIRECTIVES)
        assert noted["threads"] < 10 + 3 * len(DIRECTIVES)


def test_the_environment_is_as_it_was(switched: Launch) -> None:
    set_at_launch = one(switched.lines, "hello")["backend"] == "gloo"
    assert {noted["cycle"] for noted in switched.noted} == {"1.5" if set_at_launch else ""}


def test_the_end_of_a_search(switched: Launch) -> None:
    """Over MPI it is decided; over Gloo a rank joins early, and all let go when they meet again."""
    ended = [line for line in switched.lines if line["kind"] in ("applied", "end")]
    if one(switched.lines, "hello")["backend"] == "mpi":
        assert [line["kind"] for line in ended] == ["applied", "end"]
        return
    assert "hvd.join()" in ended[0]["problem"]
    assert "the training goes on as it was before" in switched.said
    assert [noted["together"] for noted in switched.noted] == [[2.0], [2.0]]


@pytest.mark.parametrize("capacity", [0, 1_000_000])
def test_variables_carry_the_values_that_a_launch_would_set(capacity: int) -> None:
    """Inside a rank and at its start a knob has one meaning; Horovod reads 1e+06 as 1."""
    values = {"fusion_threshold_mb": 0.5, "cycle_time_ms": 2.5, "hierarchical_allreduce": True}
    values["cache_capacity"] = capacity
    at_start = find_engine("horovod").environment(values, named_hosts=False)
    assert _as_variables(values) == {name: at_start[name] for name in _as_variables(values)}
    assert len(_as_variables(values)) == 4


def test_a_copy_holds_what_the_loader_takes_and_no_debug_information() -> None:
    needs.horovod()
    import horovod.torch.mpi_ops as ops

    path = Path(ops.mpi_lib.__file__)
    image = loadable(str(path))
    assert 100_000 < len(image) <= path.stat().st_size
    assert image[:40] == path.read_bytes()[:40]
    assert image[40:48] == bytes(8)


REFUSED = """
import torch, horovod.torch as hvd
hvd.init()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if "WRAP": optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(9):
    optimizer.zero_grad(); model(torch.randn(4, 8)).square().mean().backward(); optimizer.step()
print("at its end", hvd.size())
"""


@pytest.mark.parametrize(
    ("script", "variable", "why"),
    [
        (REFUSED, "HOROVOD_TIMELINE", "leave HOROVOD_TIMELINE out"),
        (REFUSED.replace("WRAP", ""), "NOTHING", "without hvd.DistributedOptimizer"),
    ],
    ids=["timeline", "no optimizer"],
)
def test_a_training_that_cannot_be_switched_gives_a_reason_and_trains_on(
    watch: Callable[..., Watched], tmp_path: Path, script: str, variable: str, why: str
) -> None:
    needs.horovod()
    done = watch(script, SCALESCOPE_TUNE="1", **{variable: str(tmp_path / "timeline.json")})
    lines = (tmp_path / "records" / "reports.jsonl").read_text().splitlines()
    assert why in one([json.loads(line) for line in lines], "hello")["refused"]
    assert "at its end 1" in done.stdout


@pytest.mark.launches
def test_whether_a_build_can_be_switched_is_tried_in_the_python_of_the_ranks(tmp_path: Path) -> None:
    needs.horovod()
    engine = find_engine("horovod")
    assert why_not_live(sys.executable, engine) == ""
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\nshift; exec {sys.executable} -c \"import sys; sys.modules['horovod'] = None; $@\"\n")
    other.chmod(0o755)
    assert "cannot be used" in why_not_live(str(other), engine)
    assert why_not_live(str(other), find_engine("ddp")) == ""
