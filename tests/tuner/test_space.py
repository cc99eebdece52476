"""Which settings are searched."""

import msgspec
import pytest

from scalescope.engines import ENGINES, exchanging, find_engine, tunable
from scalescope.engines.base import parse_value
from scalescope.errors import UsageError
from scalescope.tuner.controller_files import Hello
from scalescope.tuner.prior import profile_of, read_survey
from scalescope.tuner.settings import THREADS, fixed_knobs
from scalescope.tuner.space import Space, offline_space, online_space
from tuner.surveys import hello, survey

FOUR_ON_TWO = hello(4, 2)
TWO_HOSTS = ["a", "a", "b", "b"]


def names(space: Space) -> set[str]:
    return {knob.name for knob in space.knobs}


def exchanges(space: Space, told: dict) -> list:
    profile, engine = profile_of(read_survey(told)), find_engine(space.engine)
    return [engine.exchange(profile, space.complete(values)) for values in space.settings]


def test_settings_that_exchange_the_same_are_one_and_the_default_stands_for_its_own() -> None:
    told = survey(8.0)
    space = online_space(hello(2), told, {})
    made = exchanges(space, told)
    assert space.settings[0] == {}
    assert len(set(made)) == len(made)
    assert not any(values.get("bucket_cap_mb", 0) > 25 for values in space.settings)  # all 8 MiB fit into less


def test_every_exchange_of_the_grid_is_still_there() -> None:
    told = survey(8.0)
    profile = profile_of(read_survey(told))
    space = online_space(hello(2), told, {})
    for cap in (0.25, 0.5, 1, 2, 4, 8, 16, 25, 50):
        wanted = find_engine("ddp").exchange(profile, {"bucket_cap_mb": cap, "first_bucket_mb": min(cap, 1)})
        assert wanted in exchanges(space, told)


def test_a_cap_comes_with_its_first_bucket() -> None:
    space = online_space(hello(2), survey(), {})
    assert all("first_bucket_mb" in values for values in space.settings if "bucket_cap_mb" in values)


def test_the_default_is_what_the_script_does() -> None:
    space = online_space(hello(2, current={"bucket_cap_mb": 2.0, "first_bucket_mb": 2.0}), survey(), {})
    assert space.settings[0] == {}
    assert (
        exchanges(space, survey())[0]
        == exchanges(online_space(hello(2), survey(), {"bucket_cap_mb": 2.0, "first_bucket_mb": 2.0}), survey())[0]
    )
    assert space.complete({})["bucket_cap_mb"] == 2.0


def test_fixed_knobs_are_in_every_setting_and_not_searched() -> None:
    space = online_space(FOUR_ON_TWO, survey(hosts=2), {"bucket_cap_mb": 2.0, "gradient_as_bucket_view": True})
    assert names(space) == {"first_bucket_mb", "hierarchical_allreduce"}
    assert space.left_out["bucket_cap_mb"] == "fixed"
    assert all(space.complete(values)["bucket_cap_mb"] == 2.0 for values in space.settings)
    assert all("bucket_cap_mb" not in values for values in space.settings)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (hello(4), "all ranks are on one host"),
        (hello(2, 2), "every host has one rank"),
        (msgspec.structs.replace(FOUR_ON_TWO, hosts=("a", "a", "a", "b")), "the hosts have unequal numbers of ranks"),
        (hello(4, 2, fixed={"hierarchical_allreduce": "the script has a hook"}), "the script has a hook"),
    ],
)
def test_hierarchy_is_left_out_with_the_reason(word: Hello, reason: str) -> None:
    space = online_space(word, survey(), {})
    assert "hierarchical_allreduce" not in names(space)
    assert space.left_out["hierarchical_allreduce"] == reason


def test_hierarchy_is_searched_between_hosts_of_equal_size() -> None:
    assert "hierarchical_allreduce" in names(online_space(FOUR_ON_TWO, survey(hosts=2), {}))


def test_views_of_buckets_are_searched_on_request_only() -> None:
    for space in (
        online_space(hello(2), survey(), {}),
        offline_space("ddp", survey(), {}, hosts=["a", "a"], cores=2, threads=1),
    ):
        assert "gradient_as_bucket_view" not in names(space)
        assert space.left_out["gradient_as_bucket_view"].endswith("--search gradient_as_bucket_view")
    asked = ("gradient_as_bucket_view",)
    assert "gradient_as_bucket_view" in names(online_space(hello(2), survey(), {}, asked))
    offline = offline_space("ddp", survey(), {}, asked, hosts=["a", "a"], cores=2, threads=1)
    assert "gradient_as_bucket_view" in names(offline)
    refused = hello(2, fixed={"gradient_as_bucket_view": "the gradients are views of a buffer"})
    space = online_space(refused, survey(), {}, asked)
    assert space.left_out["gradient_as_bucket_view"] == "the gradients are views of a buffer"


def test_one_process_has_only_the_view_to_search() -> None:
    space = online_space(hello(1), survey(ranks_per_host=1), {}, ("gradient_as_bucket_view",))
    assert names(space) == {"gradient_as_bucket_view"}
    assert space.left_out["bucket_cap_mb"] == "one process exchanges nothing"


def test_without_a_survey_nothing_is_known_to_be_the_same() -> None:
    assert len(online_space(hello(2), None, {}).settings) > len(online_space(hello(2), survey(), {}).settings) > 10


def test_by_relaunch_threads_are_searched_up_to_the_cores_of_a_rank() -> None:
    space = offline_space("ddp", survey(), {}, hosts=["a", "a"], cores=8, threads=1)
    assert next(knob.values for knob in space.knobs if knob.name == THREADS.name) == (1, 2, 4)
    assert "static_graph" in names(space)
    assert THREADS.name in offline_space("ddp", survey(), {}, hosts=["a", "a"], cores=2, threads=1).left_out


def test_nccl_knobs_are_searched_as_channels_or_as_routes_and_only_on_nccl() -> None:
    def made(backend: str) -> Space:
        told = survey(tensors=4, backend=backend)
        return offline_space("ddp", told, {}, hosts=TWO_HOSTS, cores=2, threads=1, backend=backend)

    assert {"nccl_algo", "nccl_proto", "nccl_max_nchannels"} <= names(made("nccl"))
    found = [{name for name in values if name.startswith("nccl")} for values in made("nccl").settings]
    assert {"nccl_algo", "nccl_proto"} in found
    assert all(names == {"nccl_max_nchannels"} for names in found if "nccl_max_nchannels" in names)
    assert not any(name.startswith("nccl") for name in names(made("gloo")))


def test_knobs_that_are_inert_in_this_horovod_build_are_left_out_with_the_reason() -> None:
    told = survey(20.0, engine="horovod")
    space = offline_space("horovod", told, {}, hosts=TWO_HOSTS, cores=2, threads=1)
    assert names(space) == {"fusion_threshold_mb", "cycle_time_ms", "cache_capacity"}
    assert "NCCL" in space.left_out["hierarchical_allreduce"]
    assert "gathers nothing" in space.left_out["hierarchical_allgather"]
    fusions = next(knob.values for knob in space.knobs if knob.name == "fusion_threshold_mb")
    assert fusions == (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 128.0)  # 32 and more hold all 20 MiB, as the default does
    nccl = offline_space("horovod", told, {}, hosts=TWO_HOSTS, cores=2, threads=1, nccl_build=True)
    assert "hierarchical_allreduce" in names(nccl)


def test_fixed_values_are_checked() -> None:
    assert fixed_knobs("ddp", ["bucket-cap-mb=8", "threads_per_rank=2"]) == {"bucket_cap_mb": 8.0, THREADS.name: 2}
    with pytest.raises(UsageError, match="bucket_cap_mb"):
        fixed_knobs("ddp", ["bucket_cap=8"])
    with pytest.raises(UsageError, match="threads_per_rank takes"):
        fixed_knobs("ddp", ["threads_per_rank=0"])
    with pytest.raises(UsageError, match="cycle_time_ms takes"):
        offline_space("horovod", None, {"cycle_time_ms": 0.0}, hosts=TWO_HOSTS, cores=2, threads=1)


@pytest.mark.parametrize("engine", exchanging())
def test_the_space_holds_the_values_that_the_engines_knobs_declare(engine: str) -> None:
    space = offline_space(engine, None, {}, hosts=TWO_HOSTS, cores=2, threads=1, backend="nccl", nccl_build=True)
    knobs = {knob.name: knob for knob in ENGINES[engine].knobs}
    assert {name for name, knob in knobs.items() if knob.tried} <= names(space) | set(space.left_out)
    assert names(space) <= {name for name, knob in knobs.items() if knob.tried}
    for knob in space.knobs:
        sizes = knobs["bucket_cap_mb"].tried if knob.name == "first_bucket_mb" else ()  # a first bucket may be the cap
        assert set(knob.values) <= {*knobs[knob.name].tried, *sizes, space.current.get(knob.name)}


@pytest.mark.parametrize("engine", tunable())
def test_a_knob_takes_every_value_that_a_search_tries(engine: str) -> None:
    tried = [(knob, value) for knob in ENGINES[engine].knobs for value in knob.tried if value is not None]
    assert tried
    assert all(parse_value(knob, str(value)) == value for knob, value in tried)


@pytest.mark.parametrize("engine", exchanging())
def test_the_default_of_the_space_is_the_engines_default(engine: str) -> None:
    profile = profile_of(read_survey(survey(64)))
    space = offline_space(engine, None, {}, hosts=TWO_HOSTS, cores=2, threads=1)
    assert find_engine(engine).exchange(profile, space.complete({})) == find_engine(engine).exchange(profile, {})
