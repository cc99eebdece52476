"""The hierarchical allreduce where NCCL does it: all phases of all buckets on one stream, which is played."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from engines.wires import Wires, ranks_of
from scalescope.engines import hierarchical

HOSTS = [[0, 2, 4], [1, 5, 3]]


class Stream:
    """Notes for whom it waits and what runs on it."""

    def __init__(self, device: object) -> None:
        self.device = device
        self.waited: list[str] = []
        self.told: list[int] = []


class Future:
    def __init__(self, devices: list[torch.device]) -> None:
        self.devices = devices
        self.result: torch.Tensor | None = None

    def set_result(self, result: torch.Tensor) -> None:
        self.result = result


class OnDevice(torch.Tensor):
    """A tensor whose memory a stream is told of."""

    def record_stream(self, stream: Any) -> None:
        stream.told.append(self.numel())


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wires:
    made = Wires()
    made.backends = "cpu:nccl"

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        stream.waited.append("on it")
        yield

    monkeypatch.setattr(Stream, "wait_stream", lambda self, other: self.waited.append(other), raising=False)
    monkeypatch.setattr(hierarchical, "dist", made)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the computing one")
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.futures, "Future", Future)
    return made


@pytest.mark.parametrize("size", [1, 6, 7, 8])
def test_every_rank_gets_the_sum_whatever_has_to_be_padded(wires: Wires, size: int) -> None:
    groups = ranks_of(wires, HOSTS)
    tensors = {rank: (torch.arange(size) + 10.0**rank).as_subclass(OnDevice) for rank in groups}
    total = sum(tensor.clone().as_subclass(torch.Tensor) for tensor in tensors.values())
    with ThreadPoolExecutor(len(groups)) as pool:
        started = {rank: pool.submit(groups[rank]._start, tensor) for rank, tensor in tensors.items()}
    for rank, work in started.items():
        future: Any = work.result()
        assert future.result is tensors[rank]
        assert future.devices == [torch.device("cpu")]
        assert tensors[rank].tolist() == total.tolist()  # type: ignore[union-attr]


def test_one_stream_does_all_buckets_after_what_computed_them(wires: Wires) -> None:
    alone = ranks_of(wires, [[0]])[0]
    for size in (3, 5):
        alone._start(torch.ones(size).as_subclass(OnDevice))
    (stream,) = alone._streams.values()
    assert isinstance(stream, Stream)
    assert stream.device == torch.device("cpu")
    assert stream.waited == ["the computing one", "on it"] * 2
    assert stream.told == [3, 5], "their memory is in use until the stream is done"


def test_collectives_have_their_older_names_where_torch_has_no_newer(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"reduce_scatter_single": "reduce_scatter_tensor", "all_gather_single": "all_gather_into_tensor"}
    for newer, older in names.items():
        monkeypatch.setattr(wires, older, getattr(wires, newer), raising=False)
        monkeypatch.setattr(wires, newer, None)
    test_every_rank_gets_the_sum_whatever_has_to_be_padded(wires, 7)
