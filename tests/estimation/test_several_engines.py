"""Several engines in one map: each cell names its own, and the advice the better one."""

import json
from pathlib import Path

import pytest
from tests.simulator.made import described, proportional

from command_line import CommandLine
from scalescope.errors import UsageError
from scalescope.estimation.estimate import dry_run, estimate_request
from scalescope.records.job import Knobs
from scalescope.records.prediction import Prediction
from scalescope.records.profile import ShardedPoint
from scalescope.show.prediction import engine_words, grids
from scalescope.simulator.grid import Question, predict, together

TIMES = ("--step-time", "1=20ms,8=110ms", "--np", "1,8,16")
CLUSTER = str(Path(__file__).parents[2] / "examples" / "clusters" / "h200-4x8.toml")


def one(engine: str, **more: object) -> Prediction:
    profile = proportional(1, 8, sample_s=0.1, gradient_mib=4.0, **more)
    knobs = Knobs(engine=engine, values={})
    return predict(Question(profile=profile, cluster=described(100.0), knobs=knobs, np=(1, 2, 8), batches=(1, 8)))


def test_the_cells_of_a_joint_map_are_those_of_each_engine() -> None:
    alone = [one(engine) for engine in ("ddp", "fsdp2")]
    both = together(alone)
    for prediction in alone:
        own = [cell for cell in both.cells if cell.engine == prediction.engine]
        assert [cell.step_s for cell in own] == [cell.step_s for cell in prediction.cells]
    assert [grid.engine for grid in grids(both)] == ["ddp", "fsdp2"]
    assert together(alone[:1]) == alone[0]


def test_a_map_says_that_sharding_was_not_measured() -> None:
    warning = "memory of fsdp2 is modelled, and what fsdp2 itself costs a process is left out"
    assert warning in one("fsdp2").warnings
    assert warning not in one("ddp").warnings
    point = ShardedPoint(ranks=2, batch=1, reshards=None, added_s=0.01, added_bytes=0)
    measured = one("fsdp2", sharded=(point,))
    assert warning not in measured.warnings
    assert measured.own_s > 0.01, "the optimizer of a shard takes less"


def test_the_faster_engine_is_recommended_and_compared() -> None:
    both = together([one("ddp"), one("fsdp2")])
    assert both.recommended is not None
    best = max((cell for cell in both.cells if cell.fits), key=lambda cell: cell.throughput)
    assert both.recommended.engine == best.engine
    assert "ddp" in engine_words(both)
    assert "fsdp2" in engine_words(both)
    assert engine_words(one("ddp")) == ""


def test_both_engines_stand_in_json_and_the_next_command_names_the_better(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    done = line.in_this_process(
        "estimate", "mlp", "--engine", "ddp,fsdp2", *TIMES, "--cluster", CLUSTER, "-o", "out", "--formats", "html"
    )
    answer = json.loads((tmp_path / "out" / "estimate.json").read_text())
    assert answer["engine"] == "ddp,fsdp2"
    assert {cell["engine"] for cell in answer["cells"]} == {"ddp", "fsdp2"}
    if answer["recommended"]["np"] > 1:
        assert f"--engine {answer['recommended']['engine']}" in done.stdout.replace("--engine ddp,fsdp2", "")
    table = (tmp_path / "out" / "estimate.csv").read_text().splitlines()
    assert table[0].split(",").count("engine") == 1
    assert len(table) == 1 + len(answer["cells"])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"knobs": {"bucket_cap_mb": 5}}, "--knob is of one engine"),
        ({"engine": "ddp,plain"}, "plain"),
        ({"engine": "ddp,none"}, "one process alone is the baseline"),
    ],
)
def test_what_goes_with_one_engine_is_refused_for_several(more: dict, told: str) -> None:
    asked = {"model": "mlp", "engine": "ddp,fsdp2", "step_time": {8: 0.1}, "cluster": CLUSTER, **more}
    with pytest.raises(UsageError, match=told):
        dry_run(estimate_request(**asked))


def test_checks_of_several_engines_are_refused() -> None:
    with pytest.raises(UsageError, match="--verify runs cells of one engine"):
        dry_run(estimate_request(model="mlp", engine="ddp,fsdp2", verify=1))
