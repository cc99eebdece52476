"""What engines exchange in a step, as plain data."""

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalescope.engines import ENGINES, find_engine
from scalescope.engines.base import MIB, Exchange, Message, in_buckets, one_by_one
from scalescope.records.profile import Gradient, ModelProfile
from scalescope.workloads.models import resnet18
from simulator.made import gradients, point, profile


def model(*mib: float, **more: object) -> ModelProfile:
    ready = tuple(float(index) for index in range(len(mib)))
    return profile(point(ready_s=ready), gradients=gradients(*mib), **more)


def exchange(engine: str, of: ModelProfile, **knobs: bool | int | float | str) -> Exchange:
    return find_engine(engine).exchange(of, knobs)


def buckets_mib(of: ModelProfile, **knobs: bool | float) -> list[float]:
    return [message.bytes / MIB for message in exchange("ddp", of, **knobs).messages]


def test_ddp_fills_a_small_bucket_first_and_then_overshoots_by_up_to_a_tensor() -> None:
    layers = model(*[4] * 16)
    assert buckets_mib(layers) == [4, 28, 28, 4]
    assert buckets_mib(layers, bucket_cap_mb=25) == [28, 28, 8]
    assert buckets_mib(model(*[16] * 4)) == [16, 32, 16]


@pytest.mark.parametrize(
    ("cap", "published"),
    [(25, [2_052_000, 28_852_224, 15_853_824]), (35, [2_052_000, 38_297_600, 6_408_448])],
)
def test_ddp_makes_the_buckets_of_resnet18_that_others_have_seen(cap: int, published: list[int]) -> None:
    # pytorch/pytorch issue 48880: bytes of each allreduce, with a torch whose first bucket stayed at 1 MiB.
    with torch.device("meta"):
        parameters = list(resnet18(image_size=224).parameters())
    made = [Gradient(name=str(at), bytes=4 * each.numel()) for at, each in enumerate(reversed(parameters))]
    model = profile(point(ready_s=[float(at) for at in range(len(made))]), gradients=tuple(made))
    assert [each.bytes for each in exchange("ddp", model, bucket_cap_mb=cap, first_bucket_mb=1).messages] == published


def test_a_bucket_is_closed_by_the_gradient_that_fills_it() -> None:
    assert buckets_mib(model(0.5, 0.5, 10, 15, 1)) == [1, 25, 1]
    messages = exchange("ddp", model(0.25, 0.5, 0.5, 30)).messages
    assert messages == (Message(int(1.25 * MIB), 2, 3), Message(30 * MIB, 3, 1))


def test_kinds_of_number_are_never_mixed_and_what_is_left_goes_last() -> None:
    mixed = (
        Gradient(name="a", bytes=MIB // 4, element_bytes=2),
        Gradient(name="b", bytes=2 * MIB, element_bytes=4),
        Gradient(name="c", bytes=MIB // 4, element_bytes=2),
        Gradient(name="d", bytes=MIB, element_bytes=4),
    )
    assert in_buckets(mixed, MIB, 25 * MIB) == (
        Message(2 * MIB, 1, 1),
        Message(MIB // 2, 2, 2),
        Message(MIB, 3, 1),
    )


def test_every_kind_of_number_has_a_small_first_bucket() -> None:
    mixed = [Gradient(name=str(at), bytes=2 * MIB, element_bytes=(4, 2)[at % 2]) for at in range(4)]
    assert [message.bytes / MIB for message in in_buckets(mixed, MIB, 3 * MIB)] == [2, 2, 2, 2]
    assert [message.last for message in in_buckets(mixed, MIB, 3 * MIB)] == [0, 1, 2, 3]


SOME = st.lists(
    st.builds(Gradient, name=st.just(""), bytes=st.integers(1, 100), element_bytes=st.sampled_from([2, 4, 8])),
    max_size=30,
)


@given(SOME, st.integers(1, 200), st.integers(1, 200))
def test_no_gradient_is_lost_split_or_mixed(some: list[Gradient], first: int, cap: int) -> None:
    messages = in_buckets(some, first, cap)
    assert sum(message.bytes for message in messages) == sum(gradient.bytes for gradient in some)
    assert sum(message.tensors for message in messages) == len(some)
    for message in messages:
        kind = some[message.last].element_bytes
        earlier = [each.last for each in messages if some[each.last].element_bytes == kind and each.last < message.last]
        own = [
            gradient.bytes
            for at, gradient in enumerate(some)
            if gradient.element_bytes == kind and max(earlier, default=-1) < at <= message.last
        ]
        limit = cap if earlier else first
        assert (message.bytes, message.tensors) == (sum(own), len(own))
        assert message.bytes - own[-1] < limit
        closed = message.bytes >= limit
        assert closed or not any(gradient.element_bytes == kind for gradient in some[message.last + 1 :])


@given(SOME)
def test_one_by_one_every_gradient_is_a_message(some: list[Gradient]) -> None:
    messages = one_by_one(some)
    assert [(message.bytes, message.last, message.tensors) for message in messages] == [
        (gradient.bytes, index, 1) for index, gradient in enumerate(some)
    ]


def test_ddp_copies_unless_gradients_live_in_the_buckets() -> None:
    assert exchange("ddp", model(1)).copies
    assert not exchange("ddp", model(1), gradient_as_bucket_view=True).copies


def test_ddp_broadcasts_the_buffers_and_neither_fuses_nor_waits_for_a_beat() -> None:
    found = exchange("ddp", model(1, buffers_bytes=(100, 8)))
    assert found.broadcasts == (100, 8)
    assert (found.fuse_bytes, found.cycle_s, found.negotiated) == (0, 0, False)


@pytest.mark.parametrize(
    ("engine", "device", "knobs", "backend"),
    [
        ("ddp", "cpu", {}, "gloo"),
        ("ddp", "NVIDIA H200", {}, "nccl"),
        ("ddp", "NVIDIA H200", {"backend": "gloo"}, "gloo"),
        ("horovod", "cpu", {}, "horovod-mpi"),
        ("horovod", "cpu", {"controller": "gloo"}, "horovod-gloo"),
        ("horovod", "NVIDIA H200", {"controller": "gloo"}, "horovod-nccl"),
        ("none", "cpu", {}, "none"),
    ],
)
def test_the_backend_follows_the_device_and_the_knobs(engine: str, device: str, knobs: dict, backend: str) -> None:
    assert exchange(engine, model(1, device=device), **knobs).backend == backend


def test_horovod_follows_its_knobs() -> None:
    usual = exchange("horovod", model(1, 2, 3))
    assert usual.messages == (Message(MIB, 0, 1), Message(2 * MIB, 1, 1), Message(3 * MIB, 2, 1))
    assert (usual.fuse_bytes, usual.cycle_s) == (128 * MIB, 0.001)
    assert (usual.negotiated, usual.agreements_kept, usual.copies) == (True, True, False)
    other = exchange("horovod", model(1, 2, 3), fusion_threshold_mb=0.5, cycle_time_ms=2.5, cache_capacity=2)
    assert (other.fuse_bytes, other.cycle_s, other.agreements_kept) == (MIB // 2, 0.0025, False)
    assert exchange("horovod", model(1, 2, 3), cache_capacity=3).agreements_kept
    assert exchange("horovod", model(1), fusion_threshold_mb=0).fuse_bytes == 0


def test_horovod_broadcasts_no_buffers() -> None:
    assert exchange("horovod", model(1, buffers_bytes=(100,))).broadcasts == ()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_exchange_is_plain_data(engine: str) -> None:
    found = exchange(engine, model(1, 30, 2))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Exchange) == found
    sent = [*found.messages, *found.shards]
    assert sum(each.bytes for each in sent) == (0 if engine == "none" else 33 * MIB)
