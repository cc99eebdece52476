"""What names, arguments and the head of a profiler trace say."""

import json
from pathlib import Path
from typing import Any

import pytest

from scalescope.traces.kineto.events import (
    Arguments,
    Meaning,
    Meanings,
    arguments_of,
    facts_of,
    is_collective,
    is_compiled,
    of_device,
    of_host,
    operation_of,
)


class Told:
    """An event of which only the arguments count."""

    def __init__(self, args: bytes) -> None:
        self.args = args


def arguments(**told: Any) -> Arguments:
    named = {name.replace("_", " "): value for name, value in told.items()}
    return arguments_of(Told(json.dumps(named).encode()))  # type: ignore[arg-type]


def test_a_message_is_as_large_as_the_larger_of_what_goes_in_and_comes_out() -> None:
    assert arguments(In_msg_nelems=10, Out_msg_nelems=20, dtype="Float").bytes == 80
    assert arguments(In_msg_nelems=20, Out_msg_nelems=10, dtype="Half").bytes == 40
    assert arguments(In_msg_nelems=0, dtype="Float").bytes == 0
    assert arguments(In_msg_nelems=(1 << 50) - 1, dtype="Byte").bytes == (1 << 50) - 1
    for wrong in (-1, 1 << 50, "many", None):
        assert arguments(In_msg_nelems=wrong, dtype="Float").bytes == -1
    assert arguments(In_msg_nelems=10, dtype="strange").bytes == -1


def test_shapes_say_a_size_where_every_one_is_known() -> None:
    dims = {"Input_Dims": [[2, 3], [4], []], "Input_type": ["float", "double", "c10::BFloat16"]}
    assert arguments(**dims).bytes == 2 * 3 * 4 + 4 * 8 + 2
    assert arguments(Input_Dims=[[2], [3]], Input_type=["float"]).bytes == -1
    assert arguments(Input_Dims=[[2]], Input_type=["Scalar"]).bytes == -1
    assert arguments(Input_Dims=[2], Input_type=["float"]).bytes == -1
    assert arguments(Input_Dims=[["a"]], Input_type=["float"]).bytes == -1
    assert arguments(Input_Dims=[], Input_type=[]).bytes == -1
    assert arguments(Input_Dims=[[-2]], Input_type=["float"]).bytes == -1
    assert arguments(Input_Dims=[[1 << 60]], Input_type=["byte"]).bytes == -1
    assert arguments(Input_Dims=[[5]], Input_type=["int"], In_msg_nelems=3, dtype="int").bytes == 20


@pytest.mark.parametrize(
    ("kind", "size"),
    [("double", 8), ("long", 8), ("int", 4), ("short", 2), ("bool", 1), ("complexfloat", 8), ("ComplexDouble", 16)],
)
def test_elements_have_the_size_of_their_type(kind: str, size: int) -> None:
    assert arguments(In_msg_nelems=3, dtype=kind).bytes == 3 * size


def test_arguments_name_an_operation_and_who_asked_for_it() -> None:
    assert arguments(Collective_name="allreduce", External_id=7) == Arguments("allreduce", -1, 7, -1)
    assert arguments(Collective_name="", External_id="7") == Arguments("", -1, None, -1)
    for damaged in (b"{", b"[1]", b"\xff", b'"text"'):
        assert arguments_of(Told(damaged)) == Arguments("", -1, None, -1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("gloo:all_reduce", "allreduce"),
        ("c10d::allgather_", "allgather"),
        ("_c10d_functional::reduce_scatter_tensor", "reducescatter"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce"),
        ("ncclDevKernel_SendRecv", "send"),
        ("nccl:recv 0<-1", "recv"),
        ("nccl:all_to_all", "alltoall"),
        ("gloo:gather", "gather"),
        ("gloo:scatter", "scatter"),
        ("gloo:reduce", "reduce"),
        ("c10d::barrier", "barrier"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("something", "collective"),
    ],
)
def test_an_operation_has_one_name_whoever_made_it(name: str, operation: str) -> None:
    assert operation_of(name) == operation
    assert is_collective(operation) == (operation not in ("send", "recv", "collective"))


def test_names_mean_what_they_begin_with() -> None:
    assert of_host("ProfilerStep#3") == Meaning.STEP
    assert of_host("Optimizer.step#SGD.step") == Meaning.OPTIMIZER
    assert of_host("autograd::engine::evaluate_function: Mul") == Meaning.BACKWARD
    assert of_host("my ProfilerStep#3") == Meaning.OTHER
    assert of_device("Optimizer.step#SGD.step") == Meaning.OPTIMIZER
    assert of_device("ncclDevKernel_AllReduce") == of_device("gloo:all_reduce") == Meaning.COLLECTIVE
    assert of_device("sm90_gemm") == of_device("x" * 80 + " nccl") == Meaning.OTHER
    assert is_compiled("triton_poi_fused_add_0")
    assert is_compiled("Torch-Compiled Region: 0/0")
    assert not is_compiled("my_triton_poi_fused")


def test_what_a_name_means_is_found_once() -> None:
    asked: list[str] = []

    def find(name: str) -> Meaning:
        asked.append(name)
        return Meaning.STEP

    known = Meanings(find)
    assert [known["a"], known["a"], known["b"]] == [6, 6, 6]
    assert asked == ["a", "b"]


def head(**told: Any) -> bytes:
    return b'{"schemaVersion": 1, "baseTimeNanoseconds": 1700000000000000000, "distributedInfo": ' + (
        json.dumps(told).encode() + b', "traceEvents": ['
    )


def test_a_trace_says_its_rank_its_world_and_its_clock() -> None:
    facts = facts_of(head(rank=3, world_size=8, backend="nccl"), Path("rank_5.json"))
    assert (facts.rank, facts.world_size, facts.backend) == (3, 8, "nccl")
    assert facts.epoch_s == pytest.approx(1.7e9)
    assert facts_of(head(rank=0, world_size=0), Path("rank_5.json"))[:3] == (0, None, "")
    assert facts_of(head(rank=-1, world_size="8", backend=4), Path("trace-Rank12.json"))[:3] == (12, None, "")
    for damaged in (b'"distributedInfo": [1]', b'"distributedInfo": {"rank": ', b""):
        assert facts_of(damaged, Path("x.json")) == (None, None, "", 0.0, {}, None)
    assert facts_of(b"", Path("rank1234567.json")).rank is None


def test_more_ranks_than_there_can_be_are_unknown() -> None:
    assert facts_of(head(world_size=10**6), Path("x.json")).world_size == 10**6
    assert facts_of(head(world_size=10**6 + 1), Path("x.json")).world_size is None
