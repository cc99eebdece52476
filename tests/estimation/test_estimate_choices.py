"""What an estimate decides before and after it measures anything."""

import importlib.util
from pathlib import Path

import msgspec
import pytest

from scalescope.engines import check_backend, exchanging, find_engine
from scalescope.errors import UsageError
from scalescope.estimation.estimate import dry_run, step_to_draw
from scalescope.estimation.probe import groups
from scalescope.estimation.profile import check_profile
from scalescope.jobs.interpreter import torch_version
from scalescope.records.job import Host, Knobs
from scalescope.records.profile import WorkloadSpec
from scalescope.records.request import EstimateRequest
from scalescope.simulator.grid import Question, predict
from scalescope.units import doublings
from scalescope.verbs.estimate import after_estimate as next_command
from simulator.made import described, gradients, profile, proportional

BATCHES = (8, 16, 32, 64, 128)
CLUSTER = str(Path(__file__).parents[2] / "examples" / "clusters" / "gpu-16x8.toml")


def test_the_step_that_is_drawn_is_the_recommended_one_or_the_nearest_that_communicates() -> None:
    def drawn(np: tuple[int, ...], goal: float = 0.8, mib: float = 4) -> tuple[int, int] | None:
        question = Question(
            profile=proportional(8, 128, gradient_mib=mib),
            cluster=described(slots=16),
            knobs=Knobs(engine="ddp"),
            np=np,
            batches=BATCHES,
            efficiency_goal=goal,
        )
        found = step_to_draw(predict(question))
        return found and (found.np, found.batch)

    assert drawn((1, 2, 4)) == (4, 64)
    assert drawn((1, 2, 4), goal=0.999, mib=64) == (2, 8)
    assert drawn((1,)) is None


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (64, (1, 2, 4, 8, 16, 32, 64)), (100, (1, 2, 4, 8, 16, 32, 64, 100))],
)
def test_doublings_end_with_the_largest(largest: int, expected: tuple[int, ...]) -> None:
    assert doublings(largest) == expected


MLP = EstimateRequest(workload=WorkloadSpec(model="mlp"), profile="mine.json")
HERE = profile(torch=torch_version())


def test_a_profile_of_this_model_and_torch_is_taken_however_torch_was_built() -> None:
    release = torch_version().partition("+")[0]
    for torch in (torch_version(), f"{release}+cu128"):
        check_profile(msgspec.structs.replace(HERE, torch=torch), MLP)
    with pytest.raises(UsageError, match="was taken with torch"):
        check_profile(msgspec.structs.replace(HERE, torch=f"{release}1"), MLP)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (WorkloadSpec(model="cnn"), "mine.json is a profile of mlp, not of cnn: leave --profile out"),
        (
            WorkloadSpec(model="mlp", optimizer="adam"),
            "mine.json is a profile of mlp with other arguments, inputs",
        ),
        (WorkloadSpec(model="mlp", model_args={"width": 8}), "of mlp with other arguments"),
    ],
)
def test_a_profile_of_another_model_is_refused(workload: WorkloadSpec, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_profile(HERE, msgspec.structs.replace(MLP, workload=workload))


def test_a_profile_of_another_torch_is_refused() -> None:
    other = msgspec.structs.replace(HERE, torch="1.0.0")
    with pytest.raises(UsageError, match=r"mine.json was taken with torch 1\.0\.0 and here is .*: leave --profile out"):
        check_profile(other, MLP)


def probed(slots: int, *hosts: Host) -> list[tuple[int, int, tuple[tuple[str, int], ...]]]:
    return [
        (group.ranks, group.nodes, tuple((host.name, host.slots) for host in group.hosts))
        for group in groups("gloo", slots, hosts)
    ]


@pytest.mark.parametrize(("slots", "counts"), [(1, []), (2, [2]), (3, [2, 3]), (4, [2, 4]), (16, [2, 4, 16])])
def test_one_node_is_probed_with_two_four_and_all_ranks(slots: int, counts: list[int]) -> None:
    assert probed(slots) == [(count, 1, ()) for count in counts]


def test_two_nodes_are_probed_inside_across_and_whole() -> None:
    a, b = Host("a", 4), Host("b", 4)
    assert probed(4, a, b) == [
        (2, 1, (("a", 4),)),
        (4, 1, (("a", 4),)),
        (2, 2, (("a", 1), ("b", 1))),
        (8, 2, (("a", 4), ("b", 4))),
    ]


def test_many_nodes_are_probed_as_two_and_as_all() -> None:
    hosts = [Host(name, 1) for name in "abc"]
    assert [(ranks, nodes) for ranks, nodes, _ in probed(1, *hosts)] == [(2, 2), (3, 3)]
    larger = [Host(name, 2) for name in "abc"]
    assert [(ranks, nodes) for ranks, nodes, _ in probed(2, *larger)] == [(2, 1), (2, 2), (4, 2), (3, 3), (6, 3)]


def test_every_group_has_room_for_its_ranks() -> None:
    for ranks, nodes, hosts in probed(4, *[Host(name, 4) for name in "abcd"]):
        assert nodes == len(hosts)
        assert ranks <= sum(slots for _, slots in hosts)


def test_a_backend_that_does_not_exist_or_has_no_gpus_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no backend 'smoke': choose from gloo, nccl, horovod-gloo"):
        check_backend("smoke", "cpu")
    for backend in ("nccl", "horovod-nccl"):
        with pytest.raises(UsageError, match=f"{backend} needs GPUs and there are none here: probe gloo"):
            check_backend(backend, "cpu")
    check_backend("gloo", "cpu")
    check_backend("nccl", "cuda")


def test_horovod_is_probed_where_there_is_horovod() -> None:
    if importlib.util.find_spec("horovod"):
        check_backend("horovod-mpi", "cpu")
    else:
        with pytest.raises(UsageError, match="horovod-mpi needs Horovod, which this Python does not have"):
            check_backend("horovod-mpi", "cpu")


@pytest.mark.parametrize(
    ("engine", "knob"),
    [
        ("ddp", "find_unused_parameters=true"),
        ("ddp", "nccl_max_nchannels=4"),
        ("ddp", "nccl_algo=NVLS"),
        ("horovod", "hierarchical_allgather=1"),
    ],
)
def test_a_knob_that_the_model_does_not_know_is_refused(engine: str, knob: str) -> None:
    name = knob.partition("=")[0]
    request = EstimateRequest(workload=WorkloadSpec(model="mlp"), engine=engine, knobs=(knob,), cluster=CLUSTER)
    with pytest.raises(UsageError, match=f"does not know what {name}=.* changes: leave it out, or .* --knob {name}="):
        dry_run(request)


def test_a_knob_that_the_model_knows_is_taken() -> None:
    knobs = ("nccl_algo=Tree", "nccl_proto=LL", "hierarchical_allreduce=true")
    known = {32: 0.02}
    assert dry_run(EstimateRequest(workload=WorkloadSpec(model="mlp"), knobs=knobs, step_time=known, cluster=CLUSTER))


def test_a_profile_serves_any_accumulation_and_one_dtype() -> None:
    taken = msgspec.structs.replace(HERE, workload=WorkloadSpec(model="mlp"))
    check_profile(taken, msgspec.structs.replace(MLP, workload=WorkloadSpec(model="mlp", accumulate=4)))
    with pytest.raises(UsageError, match="other arguments, inputs, dtype"):
        check_profile(taken, msgspec.structs.replace(MLP, workload=WorkloadSpec(model="mlp", dtype="bf16")))


def test_every_knob_is_modelled_or_refused() -> None:
    """A knob that changes nothing in any exchange must not be taken as if it did."""
    models = [
        profile(gradients=gradients(0.1, 0.3, 2, 30, 4), buffers_bytes=(8,), device=kind) for kind in ("cpu", "gpu")
    ]
    without_effect = {"static_graph"}  # buckets are rebuilt all the same
    for engine in map(find_engine, exchanging()):
        for knob in engine.knobs:
            values = [value for value in knob.tried if value is not None and value != knob.default]
            if not knob.modelled or knob.name in without_effect or not values:
                continue
            told = [engine.exchange(model, {knob.name: value}) for model in models for value in values]
            usual = [engine.exchange(model, {}) for model in models for _ in values]
            assert told != usual, knob.name


def test_next_keeps_the_engine_and_its_knobs() -> None:
    request = EstimateRequest(
        workload=WorkloadSpec(model="mlp"), engine="horovod", knobs=("cycle_time_ms=2",), cluster=CLUSTER
    )
    found = predict(
        Question(
            profile=proportional(8, 128),
            cluster=described(slots=16),
            knobs=Knobs(engine="horovod"),
            np=(1, 2),
            batches=(8,),
        )
    )
    for follow in (
        next_command(request, found, Path("results")),
        next_command(request, msgspec.structs.replace(found, doubts=("busy",)), Path("results")),
        next_command(msgspec.structs.replace(request, cluster=""), found, Path("results")),
    ):
        assert "--engine horovod --knob cycle_time_ms=2" in follow
