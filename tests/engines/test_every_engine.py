"""What every engine promises."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import needs
from scalescope.engines import ENGINES, Engine, find_engine
from scalescope.engines.base import describe_range, parse_knobs, parse_value
from scalescope.errors import UsageError
from scalescope.launchers import LAUNCHERS

EVERY_ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
EVERY_KNOB = pytest.mark.parametrize(
    ("engine", "knob"), [(engine, knob) for engine in ENGINES.values() for knob in engine.knobs], ids=lambda x: x.name
)


@EVERY_ENGINE
def test_its_launcher_exists(engine: Engine) -> None:
    assert engine.launcher({}) in LAUNCHERS


@EVERY_ENGINE
def test_its_live_half_starts_wraps_and_finishes(engine: Engine) -> None:
    live = importlib.import_module(engine.live_module)
    assert all(callable(getattr(live, name)) for name in ("start", "wrap", "finish"))


@EVERY_ENGINE
def test_its_environment_is_made_of_texts(engine: Engine) -> None:
    values = {knob.name: parse_value(knob, _acceptable(knob)) for knob in engine.knobs}
    for named_hosts in (False, True):
        assert all(isinstance(text, str) for text in engine.environment(values, named_hosts=named_hosts).values())


@EVERY_KNOB
def test_a_knob_takes_its_default_and_refuses_nonsense(engine: Engine, knob) -> None:
    if knob.default is not None:
        assert parse_value(knob, str(knob.default)) == knob.default
    for text in ("", "nonsense", "nan" if knob.type == "int" else "-1e9"):
        with pytest.raises(UsageError, match=f"knob {knob.name} takes"):
            parse_value(knob, text)
    assert describe_range(knob)
    assert knob.meaning


@pytest.mark.parametrize(
    "knob",
    [knob for engine in ENGINES.values() for knob in engine.knobs if knob.high is not None],
    ids=lambda x: x.name,
)
def test_a_knob_stops_at_its_ends(knob) -> None:
    kind = int if knob.type == "int" else float
    assert parse_value(knob, str(kind(knob.low))) == knob.low
    assert parse_value(knob, str(kind(knob.high))) == knob.high
    with pytest.raises(UsageError):
        parse_value(knob, str(kind(knob.high) * 2))


def _acceptable(knob) -> str:
    return {"bool": "true", "choice": (knob.choices or ("",))[0]}.get(knob.type, str(int(knob.high or 1)))


def test_an_unknown_knob_shows_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no knob 'bucket_cap'.*bucket_cap_mb"):
        parse_knobs(find_engine("ddp"), ["bucket_cap=3"])
    with pytest.raises(UsageError, match="takes NAME=VALUE, for example bucket_cap_mb=25"):
        parse_knobs(find_engine("ddp"), ["bucket_cap_mb"])


def test_an_unknown_engine_shows_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean horovod"):
        find_engine("horovood")


def test_knobs_reach_horovod_in_its_own_units() -> None:
    knobs = parse_knobs(find_engine("horovod"), ["fusion-threshold-mb=0.5", "cycle_time_ms=2.5", "cache_capacity=0"])
    env = find_engine("horovod").environment(knobs.values, named_hosts=False)
    assert env["HOROVOD_FUSION_THRESHOLD"] == "524288"
    assert env["HOROVOD_CYCLE_TIME"] == "2.5"
    assert env["HOROVOD_CACHE_CAPACITY"] == "0"
    assert env["HOROVOD_CONTROLLER"] == env["HOROVOD_CPU_OPERATIONS"] == "mpi"


DDP_WORDS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
GLOO_WORDS = ("-m", "horovod.runner.launch", "-np", "2", "-H", "localhost:2", "--gloo", sys.executable)
MPI_WORDS = ("mpirun", "--allow-run-as-root", "-np", "2", "-H", "localhost:2", "--bind-to", "none", sys.executable)


@pytest.mark.launches
@pytest.mark.parametrize(
    ("engine", "words", "knobs"),
    [
        ("ddp", (sys.executable, *DDP_WORDS), [{}, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}]),
        ("horovod", (sys.executable, *GLOO_WORDS), [{"controller": "gloo"}]),
        ("horovod", MPI_WORDS, [{"controller": "mpi"}]),
    ],
    ids=["ddp with all and with small buckets", "horovod gloo", "horovod mpi"],
)
def test_gradients_of_two_ranks_are_the_mean_of_both(engine, words, knobs, scripts: Path, tmp_path: Path) -> None:
    if engine == "horovod":
        needs.horovod()
        needs.openmpi()
    live = find_engine(engine).live_module
    command = [*words, str(scripts / "gradients.py"), live, json.dumps(knobs), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for ranks in zip(*(torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)), strict=True):
        assert [rank["size"] for rank in ranks] == [2, 2]
        gradients = [rank[kind] for kind in ("own", "engine") for rank in ranks]
        for own0, own1, engine0, engine1 in zip(*gradients, strict=True):
            assert not torch.allclose(own0, own1)
            torch.testing.assert_close(engine0, (own0 + own1) / 2)
            assert torch.equal(engine0, engine1)
