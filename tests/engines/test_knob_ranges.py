"""What each knob takes, what it is when nobody sets it, and which values a search tries."""

import pytest

from scalescope.engines import ENGINES, PLAIN, engine_of_backend, exchanging, find_engine, knobs_of
from scalescope.engines.base import MIB, describe_range, parse_knobs, parse_value
from scalescope.errors import UsageError
from scalescope.launchers import find_launcher
from scalescope.records.job import Knob, KnobValue
from simulator.made import gradients, point, profile

SIZES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 25.0, 50.0, 100.0)
BOTH = (False, True)
BUCKETS = "a number from 0.001 to 4096 MiB"
YES_NO = "true or false"
CHANNELS = "a whole number from 1 to 64"
ROUTES = "Ring or Tree or CollnetDirect or CollnetChain or NVLS or NVLSTree"
KNOBS = {
    # Engine and knob: what it takes, its value when nobody sets it, what a search tries, whether it changes live
    ("ddp", "bucket_cap_mb"): (BUCKETS, 25.0, SIZES, True),
    ("ddp", "first_bucket_mb"): (BUCKETS, 1.0, (0.0625, 0.25, 1.0), True),
    ("ddp", "gradient_as_bucket_view"): (YES_NO, False, BOTH, True),
    ("ddp", "hierarchical_allreduce"): (YES_NO, False, BOTH, True),
    ("ddp", "static_graph"): (YES_NO, False, BOTH, False),
    ("ddp", "find_unused_parameters"): (YES_NO, False, (), False),
    ("ddp", "backend"): ("gloo or nccl", None, (), False),
    ("ddp", "nccl_algo"): (ROUTES, None, (None, "Ring", "Tree"), False),
    ("ddp", "nccl_proto"): ("LL or LL128 or Simple", None, (None, "LL", "LL128", "Simple"), False),
    ("ddp", "nccl_max_nchannels"): (CHANNELS, None, (None, 2, 4, 8, 16), False),
    ("horovod", "fusion_threshold_mb"): (
        "a number from 0 to 4096 MiB",
        128,
        (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
        True,
    ),
    ("horovod", "cycle_time_ms"): (
        "a number from 0.01 to 1000 ms",
        1,
        (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0),
        True,
    ),
    ("horovod", "cache_capacity"): ("a whole number from 0 to 1e+06", 1024, (0, 1024), True),
    ("horovod", "hierarchical_allreduce"): (YES_NO, False, BOTH, True),
    ("horovod", "torus_allreduce"): (YES_NO, False, BOTH, True),
    ("horovod", "hierarchical_allgather"): (YES_NO, False, (), False),
    ("horovod", "controller"): ("mpi or gloo", "mpi", (), False),
    ("fsdp2", "reshard_after_forward"): (YES_NO, None, (), False),
    ("fsdp2", "backend"): ("gloo or nccl", None, (), False),
}


def test_every_knob_is_listed_here() -> None:
    assert {(engine.name, knob.name) for engine in ENGINES.values() for knob in engine.knobs} == set(KNOBS)


@pytest.mark.parametrize(("engine", "name"), KNOBS)
def test_a_knob_takes_and_tries_what_is_listed(engine: str, name: str) -> None:
    knob = next(knob for knob in find_engine(engine).knobs if knob.name == name)
    usual = knob.default if knob.default is not None else knob.unset
    assert (describe_range(knob), usual, knob.tried, knob.changes == "live") == KNOBS[engine, name]


def test_what_an_estimate_does_not_know_and_a_search_does_not_try_by_itself_is_marked() -> None:
    def marked(attribute: str, value: object) -> set[str]:
        return {knob.name for each in ENGINES.values() for knob in each.knobs if getattr(knob, attribute) is value}

    assert marked("modelled", False) == {
        "find_unused_parameters",
        "nccl_max_nchannels",
        "torus_allreduce",
        "hierarchical_allgather",
    }
    assert marked("on_request", True) == {"gradient_as_bucket_view"}
    assert set(find_engine("ddp").arguments) == {
        "bucket_cap_mb",
        "gradient_as_bucket_view",
        "static_graph",
        "find_unused_parameters",
    }


def test_engines_differ_in_what_they_do_by_themselves() -> None:
    horovod, ddp = find_engine("horovod"), find_engine("ddp")
    assert (horovod.polls, horovod.autotunes, horovod.changes_live) == (True, True, True)
    assert (ddp.polls, ddp.autotunes, ddp.changes_live) == (False, False, True)
    assert (PLAIN.polls, PLAIN.autotunes, PLAIN.changes_live) == (False, False, False)
    assert (ddp.model_error, horovod.model_error) == (0.055, 0.09)
    assert exchanging() == ["ddp", "horovod", "fsdp2"]
    assert PLAIN.values_for("gloo") == {}


def number(low: float | None, high: float | None, kind: str = "float") -> Knob:
    return Knob(name="size", type=kind, default=None, low=low, high=high, unit="MiB", meaning="")  # type: ignore[arg-type]


def test_ranges_are_open_where_an_end_is_missing() -> None:
    assert describe_range(number(None, None)) == "a number"
    assert describe_range(number(2, None)) == "a number from 2 MiB"
    assert describe_range(number(2, 8, "int")) == "a whole number from 2 to 8 MiB"
    assert parse_value(number(None, None), "-1e9") == -1e9
    assert parse_value(number(2, None), "1e9") == 1e9
    for text in ("1.9", "nan"):
        with pytest.raises(UsageError, match=f"knob size takes a number from 2 MiB, not {text}"):
            parse_value(number(2, None), text)
    with pytest.raises(UsageError, match=r"knob size takes a whole number from 2 to 8 MiB, not '2\.5'"):
        parse_value(number(2, 8, "int"), "2.5")


def test_words_for_yes_and_no_in_any_case() -> None:
    knob = next(knob for knob in find_engine("ddp").knobs if knob.name == "static_graph")
    assert [parse_value(knob, text) for text in ("true", "YES", "on", "1")] == [True] * 4
    assert [parse_value(knob, text) for text in ("False", "no", "off", "0")] == [False] * 4


def test_an_engine_without_knobs_says_so() -> None:
    with pytest.raises(UsageError, match="none has no knob 'size': it has none"):
        parse_knobs(PLAIN, ["size=3"])


def test_ddps_variables_are_nccls_and_loopback_on_one_machine() -> None:
    environment = find_engine("ddp").environment
    assert environment({}, named_hosts=True) == {}
    values: dict[str, KnobValue] = {
        "nccl_algo": "Tree",
        "nccl_proto": "LL128",
        "nccl_max_nchannels": 4,
        "bucket_cap_mb": 5,
    }
    carried = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128", "NCCL_MAX_NCHANNELS": "4"}
    assert environment(values, named_hosts=False) == {"GLOO_SOCKET_IFNAME": "lo", **carried}
    assert environment(values, named_hosts=True) == carried
    assert find_engine("ddp").in_ranks(values) == {"bucket_cap_mb": 5}


def test_horovods_variables_say_yes_and_no_as_numbers() -> None:
    values: dict[str, KnobValue] = {
        "hierarchical_allreduce": True,
        "torus_allreduce": False,
        "controller": "gloo",
        "cycle_time_ms": 2.0,
    }
    assert find_engine("horovod").environment(values, named_hosts=True) == {
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_TORUS_ALLREDUCE": "0",
        "HOROVOD_CYCLE_TIME": "2",
    }


def test_launchers_follow_the_controller() -> None:
    horovod = find_engine("horovod")
    assert horovod.launcher({}) == horovod.launcher({"controller": "mpi"}) == "mpirun"
    assert horovod.launcher({"controller": "gloo"}) == "horovodrun"
    with pytest.raises(UsageError, match="srun cannot start Horovod's Gloo controller"):
        horovod.fitted({"controller": "gloo"}, find_launcher("srun"), lambda: True)
    assert horovod.fitted({"controller": "gloo"}, find_launcher("horovodrun"), lambda: True) == {"controller": "gloo"}
    assert find_engine("ddp").fitted({"bucket_cap_mb": 2}, find_launcher("mpirun"), lambda: True) == {
        "bucket_cap_mb": 2
    }


def test_backends_belong_to_engines() -> None:
    assert [engine_of_backend(name).name for name in ("gloo", "nccl", "horovod-mpi", "other")] == [
        "ddp",
        "ddp",
        "horovod",
        "ddp",
    ]
    assert knobs_of("horovod-nccl").values == {"controller": "mpi"}
    assert knobs_of("gloo").values == {"backend": "gloo"}


def test_nccl_and_hosts_show_in_the_exchange() -> None:
    model = profile(point(ready_s=(1.0, 2.0)), gradients=gradients(1, 1), device="NVIDIA H200", buffers=3)
    exchange = find_engine("ddp").exchange
    usual = exchange(model, {})
    assert (usual.algorithm, usual.protocol, usual.by_hosts, usual.broadcast_tensors) == ("auto", None, False, 3)
    held = exchange(model, {"nccl_algo": "Ring", "nccl_proto": "LL", "hierarchical_allreduce": True})
    assert (held.algorithm, held.protocol, held.by_hosts) == ("ring", "LL", True)
    assert exchange(model, {"nccl_algo": "Tree"}).algorithm == "tree"
    assert [each.bytes for each in exchange(model, {"first_bucket_mb": 2}).messages] == [2 * MIB]
    horovod = find_engine("horovod").exchange
    assert not horovod(model, {}).by_hosts
    assert horovod(model, {"hierarchical_allreduce": True}).by_hosts
    on_cpu = profile(point(ready_s=(1.0, 2.0)), gradients=gradients(1, 1))
    assert not horovod(on_cpu, {"hierarchical_allreduce": True}).by_hosts, "NCCL builds only"
