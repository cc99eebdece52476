"""The map: which cells it has, what they promise, and which of them it recommends."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalescope.engines import find_engine
from scalescope.errors import UsageError
from scalescope.records.job import Knobs
from scalescope.records.prediction import Calibration, Cell, Prediction
from scalescope.records.profile import ProfilePoint
from scalescope.records.request import EFFICIENCY_GOAL, ScalingKind
from scalescope.simulator.grid import Question, largest_batch, predict
from scalescope.stats import PREDICTED, normal_width
from simulator.made import GIB, contention, described, point, profile, proportional

DDP = Knobs(engine="ddp")
DDP_ERROR = find_engine("ddp").model_error
STEADY = proportional(8, 64)
"""A sample takes a second, a message among p ranks 2 (p - 1) / p of a second."""


def asked(*, np: tuple[int, ...] = (1, 2, 4, 8), batches: tuple[int, ...] = (8,), **more: object) -> Prediction:
    return predict(
        Question(**{"profile": STEADY, "cluster": described(), "knobs": DDP, **more}, np=np, batches=batches)
    )


def cell(prediction: Prediction, np: int, batch: int = 8, scaling: str = "weak") -> Cell:
    (found,) = [one for one in prediction.cells if (one.np, one.batch, one.scaling) == (np, batch, scaling)]
    return found


def test_weak_scaling_gives_each_process_the_batch() -> None:
    found = cell(asked(), 4)
    assert (found.batch, found.global_batch, found.nodes) == (8, 32, 1)
    assert found.step_s == pytest.approx(8 + 1.5)
    assert found.exposed_s == pytest.approx(1.5)
    assert found.hidden_s == 0
    assert found.speedup == pytest.approx(4 * 8 / 9.5)
    assert found.efficiency == pytest.approx(8 / 9.5)
    assert found.throughput == pytest.approx(32 / 9.5)
    assert found.device_hours == pytest.approx(4 * 1e6 / (32 / 9.5) / 3600)


def test_strong_scaling_splits_the_batch() -> None:
    found = cell(asked(scalings=("strong",), batches=(64,)), 4, 16, "strong")
    assert found.global_batch == 64
    assert found.step_s == pytest.approx(16 + 1.5)
    assert found.speedup == pytest.approx(64 / 17.5)
    assert found.throughput == pytest.approx(64 / 17.5)


def test_a_batch_that_does_not_divide_is_as_slow_as_its_largest_part() -> None:
    found = cell(asked(scalings=("strong",), np=(3,), batches=(64,)), 3, 22, "strong")
    assert found.global_batch == 64
    assert found.step_s == pytest.approx(22 + 4 / 3)
    assert found.throughput == pytest.approx(64 / (22 + 4 / 3))


def test_the_map_has_every_process_with_every_batch_in_both_scalings() -> None:
    cells = asked(np=(1, 2, 8), batches=(4, 8), scalings=("weak", "strong")).cells
    weak = [(one.np, one.global_batch) for one in cells if one.scaling == "weak"]
    strong = [(one.np, one.global_batch) for one in cells if one.scaling == "strong"]
    assert weak == [(1, 4), (2, 8), (8, 32), (1, 8), (2, 16), (8, 64)]
    assert strong == [(1, 4), (2, 4), (1, 8), (2, 8), (8, 8)]  # 4 samples are too few for 8 processes


def test_nodes_are_filled_one_after_another() -> None:
    cells = asked(np=(1, 4, 5, 9), cluster=described(slots=4, nodes=3)).cells
    assert [one.nodes for one in cells] == [1, 1, 2, 3]


def test_more_processes_than_slots_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--np 9 is beyond the 8 slots of made \(2 x 4\): lower --np, or describe"):
        asked(np=(1, 9), cluster=described(slots=4, nodes=2))


def test_too_few_samples_for_any_process_are_refused() -> None:
    with pytest.raises(UsageError, match="a global batch of 3 has no sample for each of 8 processes"):
        asked(np=(4, 8), batches=(2, 3), scalings=("strong",))


def test_one_process_is_the_profile_and_knows_its_speedup() -> None:
    for scaling in ("weak", "strong"):
        found = cell(asked(scalings=(scaling,)), 1, scaling=scaling)
        assert found.step_s == pytest.approx(8, rel=1e-12)
        assert (found.speedup, found.efficiency) == pytest.approx((1, 1))
        assert found.speedup_low == found.speedup == found.speedup_high
        assert found.exposed_s == found.hidden_s == 0


GROWING = proportional(8, 64, sample_bytes=GIB, memory_limit_bytes=65 * GIB)


def test_a_batch_beyond_memory_is_marked_and_never_recommended() -> None:
    on_gpu = msgspec.structs.replace(GROWING, device="H200")
    found = asked(profile=on_gpu, np=(1, 2), batches=(32, 64, 128), cluster=described(device="gpu"))
    assert [(one.np, one.batch) for one in found.cells if one.fits] == [(1, 32), (2, 32), (1, 64)]
    assert cell(found, 1, 128).memory_bytes == 129 * GIB
    assert cell(found, 2, 64).memory_bytes == 65 * GIB + 2**20  # buckets
    assert found.largest_batch == 64
    assert (found.recommended.np, found.recommended.batch) == (2, 32)


def test_processes_share_the_memory_of_a_node_and_each_gpu_has_its_own() -> None:
    large = proportional(8, 64, sample_bytes=GIB // 8, memory_limit_bytes=64 * GIB)  # 9 GiB with batch 64
    found = asked(profile=large, np=(1, 4, 8, 16), batches=(64,), cluster=described(slots=8, nodes=2))
    assert [one.np for one in found.cells if one.fits] == [1, 4]  # 8 of 9 GiB do not fit, on two nodes neither
    assert cell(found, 8, 64).memory_bytes < 10 * GIB, "of one process"
    assert (found.largest_batch, found.memory_shared_by) == (56, 8)
    on_gpu = msgspec.structs.replace(large, device="H200")
    gpus = asked(profile=on_gpu, np=(1, 4, 8, 16), batches=(64,), cluster=described(slots=8, nodes=2, device="gpu"))
    assert all(one.fits for one in gpus.cells)
    assert gpus.memory_shared_by == 1


def test_strong_speedups_over_a_step_that_nobody_can_run_are_marked() -> None:
    large = proportional(8, 64, sample_bytes=GIB, memory_limit_bytes=128 * GIB, device="H200")
    found = asked(
        profile=large, np=(1, 8), batches=(64, 512), scalings=("strong",), cluster=described(slots=8, device="gpu")
    )
    assert [(one.np, one.global_batch, one.baseline_fits, one.measured_batch) for one in found.cells] == [
        (1, 64, True, True),
        (8, 64, True, True),
        (1, 512, False, False),
        (8, 512, False, False),
    ]
    assert found.cells[3].fits
    assert any(words.startswith("a global batch of 512 or more does not fit one process") for words in found.warnings)
    extrapolated = asked(np=(8,), batches=(512,), scalings=("strong",))
    assert [(one.baseline_fits, one.measured_batch) for one in extrapolated.cells] == [(True, False)]


def test_beyond_one_node_whole_nodes_are_recommended() -> None:
    wide = described(1e6, slots=8, nodes=4)
    found = asked(np=tuple(range(1, 33)), cluster=wide).recommended
    assert (found.np, found.regret) == (32, 0)
    assert "the fewest nodes within 5 %" in found.why
    partly = asked(np=(1, 31), cluster=wide).recommended
    assert partly.np == 31, "where there is nothing else"
    inside = asked(np=(1, 5), cluster=wide).recommended
    assert inside.np == 5


def test_accumulation_exchanges_once_for_several_passes_and_needs_the_memory_of_one() -> None:
    # A sample takes a second, 0.1 of it in the optimizer; a message among 2 ranks takes a second.
    usual, accumulated = (asked(np=(1, 2), batches=(32,), accumulate=passes) for passes in (1, 4))
    assert cell(usual, 2, 32).step_s == pytest.approx(32 + 1)
    assert cell(accumulated, 2, 32).step_s == pytest.approx(32 * 0.9 + 0.8 + 1), "one optimizer step, of a small batch"
    assert cell(accumulated, 2, 32).exposed_s == cell(usual, 2, 32).exposed_s == 1
    assert cell(accumulated, 1, 32).speedup == 1
    large = asked(profile=GROWING, np=(1,), batches=(128, 256), accumulate=4)
    assert [(one.batch, one.fits, one.measured_batch) for one in large.cells] == [(128, True, True), (256, True, True)]
    assert large.largest_batch == 256
    assert [one.batch for one in asked(np=(1,), batches=(2, 8), accumulate=4).cells] == [8]


def test_a_batch_that_did_not_fit_when_it_was_tried_does_not_fit() -> None:
    tried = msgspec.structs.replace(GROWING, too_large=48)
    found = asked(profile=tried, np=(1,), batches=(32, 47, 48, 64))
    assert [one.batch for one in found.cells if one.fits] == [32, 47]
    assert found.largest_batch == 47


def test_when_nothing_fits_nothing_is_recommended() -> None:
    found = asked(profile=msgspec.structs.replace(GROWING, too_large=1))
    assert found.recommended is None
    assert found.most_efficient_np is None


def test_memory_that_does_not_grow_says_nothing_about_the_largest_batch() -> None:
    assert largest_batch(STEADY) is None
    assert largest_batch(msgspec.structs.replace(STEADY, too_large=48)) == 47, "but that one did not fit does"


def test_batches_outside_the_profile_are_marked() -> None:
    found = asked(np=(1,), batches=(4, 8, 20, 64, 65))
    assert [one.batch for one in found.cells if one.measured_batch] == [8, 20, 64]


# With 8 s of compute and 1.6 MiB the efficiencies are 8 / (8 + 1.6 x 2 (p - 1) / p): 0.83, 0.77 and 0.74.
WIDE = proportional(8, 64, gradient_mib=1.6)


def test_the_recommended_cell_keeps_the_efficiency_goal_and_states_its_regret() -> None:
    found = asked(profile=WIDE)
    assert found.efficiency_goal == EFFICIENCY_GOAL == 0.8
    advice = found.recommended
    assert (advice.np, advice.batch, advice.global_batch, advice.scaling) == (2, 8, 16, "weak")
    assert advice.efficiency == pytest.approx(8 / 9.6)
    assert advice.speedup == pytest.approx(16 / 9.6)
    assert advice.throughput == pytest.approx(16 / 9.6)
    assert advice.regret == pytest.approx(1 - (16 / 9.6) / (64 / 10.8))
    assert found.most_efficient_np == 2
    assert "at least 80 %" in advice.why


@pytest.mark.parametrize(("goal", "processes"), [(0.99, 1), (0.8, 2), (0.75, 4), (0.5, 8)])
def test_the_goal_decides_how_far_to_go(goal: float, processes: int) -> None:
    found = asked(profile=WIDE, efficiency_goal=goal)
    assert (found.recommended.np, found.most_efficient_np) == (processes, processes)
    assert (found.recommended.regret == 0) == (processes == 8)


def test_an_efficiency_that_the_interval_does_not_tell_from_the_goal_is_not_one_process() -> None:
    efficiency = 8 / 9.6
    found = asked(profile=WIDE, np=(1, 2), efficiency_goal=1.02 * efficiency)
    assert (found.recommended.np, found.most_efficient_np) == (2, 2)
    surer = Calibration(estimates=9, factor=1.0, spread=0.0, mean_error=0.0)
    exact = asked(profile=WIDE, np=(1, 2), efficiency_goal=1.1 * efficiency, calibration=surer)
    assert (exact.recommended.np, exact.most_efficient_np) == (1, 1)


def test_when_nothing_is_efficient_the_fastest_that_gains_something_is_recommended() -> None:
    found = asked(profile=WIDE, np=(2, 4), efficiency_goal=0.99)
    assert found.recommended.np == 4
    assert "none reaches the efficiency goal" in found.recommended.why
    assert found.most_efficient_np is None


def test_what_gains_nothing_is_not_recommended_for_its_throughput() -> None:
    # Twice as slow beside another process with the large batch: its speedup is 0.8, its throughput the highest.
    contended = profile(
        point(8, forward_s=7.0, backward_s=1.0, optimizer_s=0.0, ready_s=(1.0,) * 4),
        point(64, forward_s=8.0, backward_s=1.0, optimizer_s=0.0, ready_s=(1.0,) * 4),
        crowds=(contention(2, 1.5, 8), contention(2, 2.5, 64)),
    )
    found = asked(profile=contended, cluster=described(1e6), np=(2,), batches=(8, 64))
    assert [one.speedup for one in found.cells] == pytest.approx([2 / 1.5, 0.8], rel=1e-3)
    assert (found.recommended.batch, found.recommended.regret) == (
        8,
        pytest.approx(1 - 16 / 12 / (128 / 22.5), rel=1e-3),
    )


def test_when_nothing_gains_one_process_is_recommended() -> None:
    found = asked(cluster=described(0.01), scalings=("strong",))
    assert all(one.speedup < 1 for one in found.cells if one.np > 1)
    assert (found.recommended.np, found.recommended.regret) == (1, 0)


def test_little_throughput_is_given_up_for_fewer_processes_and_smaller_batches() -> None:
    # A fixed cost that does not shrink: 128 samples take 104 s on 2 processes and 100.75 s on 8.
    fixed = profile(
        point(16, forward_s=100.0, backward_s=1.0, optimizer_s=0.0, ready_s=(1.0,) * 4),
        point(128, forward_s=100.0, backward_s=8.0, optimizer_s=0.0, ready_s=(8.0,) * 4),
    )
    found = asked(profile=fixed, cluster=described(1e6), np=(2, 8), batches=(128,), scalings=("strong",))
    assert cell(found, 2, 64, "strong").step_s == pytest.approx(104, rel=1e-4)
    assert found.recommended.np == 2
    assert found.recommended.regret == pytest.approx(1 - 101 / 104, rel=1e-3)
    level = asked(np=(1,), batches=(64, 8, 32))
    assert level.recommended.batch == 8


def test_an_interval_holds_the_value_and_comes_from_the_models_own_error() -> None:
    prediction = asked()
    found = cell(prediction, 4)
    wide = normal_width(PREDICTED)
    links = math.log1p(math.expm1(wide * 0.1) * found.exposed_s / found.step_s) / wide
    half = math.exp(wide * math.hypot(DDP_ERROR, links))
    assert (found.low_s, found.high_s) == pytest.approx((found.step_s / half, found.step_s * half))
    assert (found.speedup_low, found.speedup_high) == pytest.approx((found.speedup / half, found.speedup * half))
    assert prediction.residual == DDP_ERROR
    alone = cell(prediction, 1)
    assert alone.low_s == alone.high_s == pytest.approx(alone.step_s)


def test_every_interval_holds_what_one_launch_differs_from_another_by() -> None:
    found = asked(profile=proportional(8, 64, launch_spread=0.1))
    wide = math.exp(normal_width(PREDICTED) * 0.1)
    alone = cell(found, 1)
    assert (alone.low_s, alone.high_s) == pytest.approx((alone.step_s / wide, alone.step_s * wide))
    assert cell(found, 4).high_s / cell(found, 4).step_s > wide
    little = asked(profile=proportional(8, 64, launch_spread=DDP_ERROR / 2))
    assert cell(little, 4) == cell(asked(), 4), "what real launches showed of the model holds their spread already"


def test_an_interval_grows_beyond_the_measured_batches() -> None:
    found = asked(np=(2,), batches=(1, 4, 8, 64, 256, 1024)).cells
    widths = [one.high_s / one.step_s for one in found]
    assert widths[0] > widths[1] > widths[2]
    assert widths[3] < widths[4] < widths[5]


WRONG = Calibration(estimates=6, factor=1.25, spread=0.1, mean_error=0.2)


def test_calibration_moves_several_processes_and_leaves_one_alone() -> None:
    plain, moved = asked(), asked(calibration=WRONG)
    assert cell(moved, 1) == cell(plain, 1)
    before, after = cell(plain, 4), cell(moved, 4)
    assert after.step_s == pytest.approx(1.25 * before.step_s)
    assert after.exposed_s == pytest.approx(1.25 * before.exposed_s)
    assert after.speedup == pytest.approx(before.speedup / 1.25)
    assert after.throughput == pytest.approx(before.throughput / 1.25)
    assert after.high_s / after.step_s > before.high_s / before.step_s
    assert (moved.residual, moved.calibration) == (0.1, WRONG)


def test_what_is_doubtful_is_said() -> None:
    doubtful = profile(point(8, outlying=True, foreign_cores=0.9))
    found = asked(profile=doubtful).warnings
    assert [words.split(":")[0] for words in found] == [
        "batch 8 lies off its neighbours even after it was measured again",
        "the cluster's links are described, not measured",
    ]
    assert asked(np=(1,)).warnings == ()  # one process uses no links


@pytest.mark.parametrize(
    ("profiled", "device", "said"),
    [
        ("cpu", "gpu", "the profile is of a CPU and made has GPUs: take the profile on a GPU, or give its step times"),
        ("H200", "cpu", "the profile is of a GPU and made has CPUs: take the profile on a CPU, or give its step times"),
    ],
)
def test_steps_of_another_kind_of_device_than_the_clusters_are_refused(profiled: str, device: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(profile=profile(point(8), device=profiled), cluster=described(device=device))


def test_a_map_of_disturbed_parts_is_not_trusted_and_recommends_nothing() -> None:
    quiet = asked()
    assert quiet.trusted
    assert quiet.recommended is not None
    busy = asked(profile=profile(point(8, foreign_cores=0.9)))
    assert (busy.trusted, busy.recommended) == (False, None)
    assert busy.doubts == ("other programs kept 0.9 cores busy during the profile",)
    assert busy.cells == asked(profile=profile(point(8))).cells
    contended = profile(point(8), crowds=(msgspec.structs.replace(contention(2, 1.5), foreign_cores=0.5),))
    assert asked(profile=contended).doubts == ("other programs kept 0.5 cores busy during the profile",)
    probed = described(disturbed="rounds of the probe differ by 40 % (one sigma)")
    assert asked(cluster=probed).doubts == (probed.disturbed,)
    assert asked(cluster=probed, np=(1,)).trusted  # one process depends on no link
    assert asked(profile=contended, np=(1,)).trusted


@given(
    st.lists(st.integers(1, 32), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 300), min_size=1, max_size=3, unique=True),
    st.sampled_from(["ddp", "horovod"]),
    st.floats(0, 0.3),
    st.floats(0.01, 100),
)
def test_every_cell_lies_in_its_interval_and_agrees_with_itself(np, batches, engine, spread, rate) -> None:
    found = asked(
        np=tuple(np),
        batches=tuple(batches),
        cluster=described(rate, slots=4, nodes=8),
        knobs=Knobs(engine=engine),
        scalings=("weak",),
        calibration=Calibration(estimates=1, factor=1.0, spread=spread, mean_error=0.0),
    )
    assert len(found.cells) == len(np) * len(batches)
    for one in found.cells:
        assert 0 < one.low_s <= one.step_s <= one.high_s
        assert one.speedup_low <= one.speedup <= one.speedup_high
        assert one.high_s >= one.step_s * math.exp(normal_width(PREDICTED) * spread) * (1 - 1e-9) or one.np == 1
        assert one.efficiency == pytest.approx(one.speedup / one.np)
        assert one.throughput == pytest.approx(one.global_batch / one.step_s)
        assert one.exposed_s + one.hidden_s < one.step_s
    if found.recommended:
        assert 0 <= found.recommended.regret < 1
        fastest = max(one.throughput for one in found.cells if one.fits)
        assert found.recommended.throughput == pytest.approx((1 - found.recommended.regret) * fastest)


def test_a_profile_whose_steps_vary_too_much_is_not_built_upon() -> None:
    def varying(error: float) -> Prediction:
        steady = proportional(8, 64)
        last = msgspec.structs.replace(steady.points[-1], error=error)
        return asked(profile=msgspec.structs.replace(steady, points=(*steady.points[:-1], last)))

    assert varying(0.13).trusted
    shaky = varying(0.14)
    assert shaky.doubts == ("the profile knows steps of one process within 26 % only",)
    assert shaky.recommended is None


def test_the_profiles_error_cancels_in_a_speedup_at_the_same_batch_and_counts_twice_at_two() -> None:
    exact = [msgspec.structs.replace(point, error=0.0) for point in proportional(8, 64).points]
    vague = [msgspec.structs.replace(point, error=0.08) for point in exact]

    def halves(points: list[ProfilePoint], scaling: ScalingKind) -> tuple[float, float]:
        made = msgspec.structs.replace(proportional(8, 64), points=tuple(points))
        found = cell(
            asked(profile=made, np=(1, 4), batches=(8,) if scaling == "weak" else (32,), scalings=(scaling,)),
            4,
            scaling=scaling,
        )
        return math.log(found.high_s / found.step_s), math.log(found.speedup_high / found.speedup)

    weak_step, weak = halves(vague, "weak")
    assert weak_step > normal_width(PREDICTED) * 0.07
    assert weak < 0.8 * weak_step
    strong_step, strong = halves(vague, "strong")
    assert strong == pytest.approx(math.hypot(strong_step, normal_width(PREDICTED) * 0.08))
    assert halves(exact, "weak")[1] == pytest.approx(halves(exact, "weak")[0])
