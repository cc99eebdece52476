"""What the simulator expects of settings, from surveys."""

import pytest

from scalescope.errors import UsageError
from scalescope.records.tuning import Values
from scalescope.tuner.prior import profile_of, read_survey
from scalescope.tuner.space import Space, offline_space, online_space
from tuner.surveys import hello, survey


def predicted(space: Space, told: dict) -> dict[str, float]:
    seconds = space.predict(told)
    assert seconds is not None
    return {str(values): each for values, each in zip(space.settings, seconds, strict=True)}


def best(space: Space, told: dict) -> Values:
    seconds = space.predict(told)
    assert seconds is not None
    return space.settings[seconds.index(min(seconds))]


def test_the_default_is_predicted_as_it_was_surveyed() -> None:
    told = survey()
    assert predicted(online_space(hello(2), told, {}), told)["{}"] == pytest.approx(told["step_s"])


def test_a_slow_link_between_hosts_favours_hierarchy_and_several_buckets() -> None:
    told = survey(6.8, hosts=2, mib_per_s=20, cpu_share=0.05)
    space = online_space(hello(4, 2), told, {})
    found = best(space, told)
    assert found["hierarchical_allreduce"] is True
    assert float(found["bucket_cap_mb"]) < 4
    seconds = predicted(space, told)
    assert seconds["{}"] / min(seconds.values()) > 1.3
    assert seconds["{}"] > seconds[str({"hierarchical_allreduce": True})] > min(seconds.values())


def test_on_full_cores_overlap_gains_nothing() -> None:
    def gain_of_many_buckets(cores: int) -> float:
        told = survey(64, tensors=64, mib_per_s=1000, cpu_share=0.9, cores=cores)
        seconds = predicted(online_space(hello(2), told, {"gradient_as_bucket_view": True}), told)
        return seconds["{}"] / min(seconds.values()) - 1

    assert gain_of_many_buckets(2) < 0.03
    assert gain_of_many_buckets(8) > 2 * gain_of_many_buckets(2)


def test_ready_times_that_messages_lengthened_are_not_lengthened_twice() -> None:
    told = survey(64, tensors=64, cpu_share=0.9)
    told["step_s"] = 0.0  # no scaling: the seconds as they are simulated
    space = online_space(hello(2), told, {})
    compute_s = told["forward_s"] + told["backward_s"] + told["optimizer_s"]
    sent_alone_s = sum(gradient[1] for gradient in told["gradients"]) / 2**20 / 1000
    assert compute_s < predicted(space, told)["{}"] < compute_s + sent_alone_s


def test_gradients_get_ready_as_much_earlier_as_backward_alone_is_shorter() -> None:
    told = read_survey(survey(tensors=4, backward_s=0.2, ready_s=[0.02, 0.04, 0.1, 0.16]))
    (alone,) = profile_of(told, 0.04).points
    assert alone.ready_s == pytest.approx((0.005, 0.01, 0.025, 0.04))
    assert (alone.forward_s, alone.backward_s, alone.optimizer_s) == pytest.approx((0.1, 0.04, 0.02))
    assert alone.step_s == pytest.approx(0.16)
    (seen,) = profile_of(told).points
    assert seen.ready_s == pytest.approx(told.ready_s)
    assert seen.backward_s == pytest.approx(0.16), "backward ends with its last gradient"
    (at_once,) = profile_of(read_survey(survey(tensors=2, ready_s=[0.0, 0.0])), 0.04).points
    assert at_once.ready_s == (0.0, 0.0)


def test_a_long_cycle_is_expected_to_cost_horovod_time() -> None:
    told = survey(8, tensors=6, engine="horovod")
    space = offline_space(
        "horovod", told, {"fusion_threshold_mb": 64, "cache_capacity": 1024}, hosts=["a", "a"], cores=2, threads=1
    )
    seconds = predicted(space, told)
    assert seconds[str({"cycle_time_ms": 50.0})] > 1.05 * seconds["{}"]


def horovod_seconds(told: dict) -> dict[float, float]:
    """Seconds by cycle time in ms; the default's are 1 ms."""
    fixed: Values = {"fusion_threshold_mb": 64, "cache_capacity": 1024}
    space = offline_space("horovod", told, fixed, hosts=["a", "a"], cores=2, threads=1)
    seconds = space.predict(told)
    assert seconds is not None
    by_cycle = {
        float(values.get("cycle_time_ms", 1.0)): each for values, each in zip(space.settings, seconds, strict=True)
    }
    return dict(sorted(by_cycle.items()))


def test_a_step_shorter_than_a_cycle_takes_a_cycle() -> None:
    told = survey(0.5, tensors=6, engine="horovod", backward_s=0.002, cpu_share=0.1)
    told |= {"forward_s": 0.001, "optimizer_s": 0.0005, "step_s": 0.0}
    seconds = horovod_seconds(told)
    for cycle_ms in (10.0, 25.0, 50.0):
        assert seconds[cycle_ms] == pytest.approx(cycle_ms / 1000, rel=0.1)
    assert seconds[1.0] < 0.008


def test_short_cycles_cost_the_cores_that_compute_needs() -> None:
    told = survey(8, tensors=6, engine="horovod", cpu_share=0.9, cores=2, backward_s=0.2)
    seconds = horovod_seconds(told)
    assert seconds[0.1] > seconds[1.0]
    idle = survey(8, tensors=6, engine="horovod", cpu_share=0.9, cores=8, backward_s=0.2)
    assert horovod_seconds(idle)[0.1] <= horovod_seconds(idle)[1.0] * 1.001


def test_a_small_message_that_was_disturbed_does_not_count() -> None:
    told, disturbed = survey(8), survey(8)
    disturbed["costs"]["flat"][2][1] *= 20
    space = online_space(hello(2), told, {})
    assert space.predict(disturbed) == pytest.approx(space.predict(told), rel=0.02)


def test_without_costs_there_is_no_prediction() -> None:
    told = survey(costs={})
    assert online_space(hello(2), told, {}).predict(told) is None


def test_one_process_needs_no_costs() -> None:
    told = survey(costs={}, ranks_per_host=1)
    seconds = online_space(hello(1), told, {}, ("gradient_as_bucket_view",)).predict(told)
    assert seconds is not None
    assert len(seconds) == 2


def test_a_survey_that_makes_no_sense_is_a_clear_line() -> None:
    with pytest.raises(UsageError, match="tune again"):
        online_space(hello(2), {"gradients": "many"}, {})
