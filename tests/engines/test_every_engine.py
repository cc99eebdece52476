"""What every engine promises."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import needs
import scalescope
from scalescope.engines import (
    COLLECTIVES,
    ENGINES,
    KNOWN,
    PLAIN,
    SEEN,
    Engine,
    engine_named,
    engine_of_backend,
    engine_of_source,
    engine_of_trace,
    find_engine,
    halves_live,
)
from scalescope.engines.base import describe_range, parse_knobs, parse_value
from scalescope.engines.ddp_live import SET_AFTERWARDS
from scalescope.errors import UsageError
from scalescope.launchers import LAUNCHERS, find_launcher
from scalescope.tuner.request import tune_request

PACKAGE = Path(scalescope.__file__).parent
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
    assert all(callable(getattr(live, name)) for name in ("start", "wrap", "agree", "finish"))
    exchanged = ("begin_allreduce", "wait", "is_done", "broadcast")
    assert engine is PLAIN or all(callable(getattr(live, name)) for name in exchanged)


@EVERY_ENGINE
def test_it_says_who_it_is(engine: Engine) -> None:
    assert engine.name == engine.name.lower()
    assert engine.title
    known = {knob.name: knob for knob in engine.knobs}
    for name, value in engine.values_for("gloo").items():
        assert parse_value(known[name], str(value)) == value
    if engine.backend_prefix:
        assert engine_of_backend(f"{engine.backend_prefix}gloo") is engine


@EVERY_ENGINE
def test_its_knobs_travel_by_a_variable_or_into_the_ranks(engine: Engine) -> None:
    values = {knob.name: parse_value(knob, _acceptable(knob)) for knob in engine.knobs}
    carried = {knob.name for knob in engine.knobs if knob.variable in engine.environment(values, named_hosts=True)}
    assert carried.isdisjoint(engine.in_ranks(values))
    assert carried | engine.in_ranks(values).keys() == values.keys()


def test_the_wrapper_takes_the_arguments_that_the_engine_says() -> None:
    taken = inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters
    ddp = find_engine("ddp")
    assert {knob.name for knob in ddp.knobs} & taken.keys() == set(ddp.arguments)
    assert {knob.name for knob in ddp.knobs if knob.changes == "live"} - taken.keys() == set(SET_AFTERWARDS)


@pytest.mark.parametrize(
    ("source", "engine"),
    [
        ("import torch", "ddp"),
        ("import os\n  import horovod.torch as hvd", "horovod"),
        ("from horovod import torch", "horovod"),
        ("# import horovod", "ddp"),
        ("import horovodish", "ddp"),
        ("", "ddp"),
    ],
)
def test_a_script_shows_its_engine_by_what_it_imports(source: str, engine: str) -> None:
    assert engine_of_source(source).name == engine


@pytest.mark.parametrize(
    ("names", "collectives", "engine"),
    [
        (["aten::add", "DistributedDataParallel.forward"], True, "ddp"),
        (["torch::distributed::reducer::mul_out"], True, "ddp"),
        (["FSDP::all_gather (layers.0)", "c10d::_allgather_base_"], True, "fsdp2"),
        (["FullyShardedDataParallel._pre_forward"], True, "fsdp"),
        (["c10d::allreduce_", "Optimizer.step#SGD.step"], True, "collectives"),
        (["aten::add"], False, "none"),
    ],
)
def test_a_trace_shows_its_engine_by_the_names_that_it_alone_gives(
    names: list[str], collectives: bool, engine: str
) -> None:
    assert engine_of_trace(names, collectives=collectives).name == engine


@pytest.mark.parametrize(
    ("own", "engine"),
    [
        ((), "fsdp2"),
        (("allgather", "reducescatter"), "fsdp2"),
        (("allgather", "reducescatter", "allreduce"), "hsdp"),
        (("allreduce",), "replicate"),
    ],
)
def test_engines_with_the_same_ranges_are_told_apart_by_what_they_send(own: tuple[str, ...], engine: str) -> None:
    names = ["FSDP::pre_forward (layers.0)", "c10d::allreduce_"]
    assert engine_of_trace(names, collectives=True, own=own).name == engine
    assert engine_of_trace([*names, "DistributedDataParallel.forward"], collectives=True, own=own).name == "ddp"


@pytest.mark.parametrize("name", SEEN)
def test_what_is_only_seen_can_be_named_but_neither_launched_nor_modelled(name: str) -> None:
    engine = engine_named(name)
    assert (engine.name, engine.knobs) == (name, ())
    with pytest.raises(UsageError, match=f"--engine {name} cannot be launched: use ddp, horovod or fsdp2, or a script"):
        find_engine(name)
    with pytest.raises(UsageError, match="cannot be modelled yet: use `scalescope measure`"):
        engine.exchange(None, {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "launcher", "has_mpi", "controller"),
    [
        ({}, "mpirun", False, "mpi"),
        ({}, "srun", False, "mpi"),
        ({}, None, True, "mpi"),
        ({}, None, False, "gloo"),
        ({}, "horovodrun", True, "gloo"),
        ({}, "own", True, None),
        ({"controller": "mpi"}, "horovodrun", False, "mpi"),
    ],
)
def test_horovods_controller_follows_from_the_launcher(given, launcher, has_mpi, controller) -> None:
    starter = launcher and find_launcher(launcher)
    assert find_engine("horovod").fitted(given, starter, lambda: has_mpi).get("controller") == controller


def test_mpirun_does_not_start_the_gloo_controller() -> None:
    with pytest.raises(UsageError, match="use --launcher horovodrun"):
        find_engine("horovod").fitted({"controller": "gloo"}, find_launcher("mpirun"), lambda: True)
    with pytest.raises(UsageError, match="torchrun cannot start Horovod's ranks: use --launcher mpirun, or horovodrun"):
        find_engine("horovod").fitted({}, find_launcher("torchrun"), lambda: True)


def test_wrapper_arguments_are_listed_nowhere_else() -> None:
    listed = re.compile(r'"gradient_as_bucket_view",\s*"static_graph"')
    assert [path.name for path in PACKAGE.rglob("*.py") if listed.search(path.read_text())] == []


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
        ("fsdp2", (sys.executable, *DDP_WORDS), [{}, {"reshard_after_forward": False}]),
        ("horovod", (sys.executable, *GLOO_WORDS), [{"controller": "gloo"}]),
        ("horovod", MPI_WORDS, [{"controller": "mpi"}]),
    ],
    ids=["ddp with all and with small buckets", "fsdp2 gathering twice and once", "horovod gloo", "horovod mpi"],
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


def test_the_agent_finds_the_live_half_of_every_engine() -> None:
    assert set(halves_live.OF_ENGINE) == set(KNOWN) - {PLAIN.name, COLLECTIVES.name}
    for name in {*halves_live.OF_ENGINE.values(), *halves_live.WATCHES.values(), *halves_live.LOOKS_AT_MODELS}:
        half = importlib.import_module(f"scalescope.engines.{name}")
        assert hasattr(half, "watch") == (name in halves_live.WATCHES.values())
        assert hasattr(half, "engine_of") == (name in halves_live.LOOKS_AT_MODELS)
        assert hasattr(half, "Tracer") == any(
            KNOWN[engine].tracer == "timeline" for engine, of in halves_live.OF_ENGINE.items() if of == name
        )


@pytest.mark.parametrize(
    "engine", [engine for engine in KNOWN.values() if not engine.is_tuned], ids=lambda each: each.name
)
def test_an_engine_without_searched_knobs_says_why_it_is_not_tuned(engine: Engine) -> None:
    assert engine.why_not_tuned
    if engine.name in ENGINES:
        with pytest.raises(UsageError, match=f"^engine {engine.name} {engine.why_not_tuned}: use ddp or horovod"):
            tune_request(model="mlp", engine=engine.name)
