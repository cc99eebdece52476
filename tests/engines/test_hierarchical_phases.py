"""The phases of the hierarchical allreduce, with all ranks in one process and queues for wires."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engines.wires import Group, Wires, ranks_of
from scalescope.engines import hierarchical
from scalescope.engines.hierarchical import Groups, prepare, prepared


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wires:
    made = Wires()
    monkeypatch.setattr(hierarchical, "dist", made)
    monkeypatch.delenv("SCALESCOPE_HOST", raising=False)
    return made


def bucket(values: torch.Tensor) -> Any:
    return SimpleNamespace(buffer=lambda: values)


def summed(tensors: dict[int, torch.Tensor], start: Callable[[int, torch.Tensor], Any]) -> None:
    for future in [start(rank, tensor) for rank, tensor in tensors.items()]:
        future.wait()


HOSTS = {"in order": [[0, 1], [2, 3]], "mixed": [[3, 0, 4], [1, 5, 2]], "three hosts": [[0, 1], [2, 3], [4, 5]]}


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_every_rank_gets_the_sum_and_a_hook_the_mean(wires: Wires, hosts: list[list[int]], size: int) -> None:
    groups = ranks_of(wires, hosts)
    assert {(each.hosts, each.ranks_per_host) for each in groups.values()} == {(len(hosts), len(hosts[0]))}
    tensors = {rank: torch.arange(size) + 10.0**rank for rank in groups}
    total = torch.stack(list(tensors.values())).sum(0)
    given = {rank: tensor.clone() for rank, tensor in tensors.items()}
    summed(tensors, lambda rank, tensor: groups[rank]._start(tensor))
    for rank in groups:
        assert torch.equal(tensors[rank], total)
    summed(given, lambda rank, tensor: groups[rank].hook(None, bucket(tensor)))
    for rank in groups:
        torch.testing.assert_close(given[rank], total / len(groups))


def test_a_matrix_is_summed_in_place(wires: Wires) -> None:
    alone = ranks_of(wires, [[0]])[0]
    matrix = torch.ones(2, 3)
    alone.allreduce(matrix)
    assert torch.equal(matrix, torch.ones(2, 3))
    assert wires.sent == []


def test_ranks_talk_inside_a_host_and_across_hosts_to_those_of_the_same_place(wires: Wires) -> None:
    ranks_of(wires, [[3, 0], [1, 2]])
    assert wires.made[:3] == [([3, 0], None, True), ([3, 0], None, True), ([0, 2], None, True)]  # rank 0's
    assert [ranks for ranks, _, _ in wires.made[2::3]] == [[0, 2], [3, 1], [0, 2], [3, 1]]


def test_inside_a_host_every_rank_sends_each_part_once(wires: Wires) -> None:
    groups = ranks_of(wires, [[0, 1, 2], [3, 4, 5]])
    summed({rank: torch.ones(7) for rank in groups}, lambda rank, tensor: groups[rank]._start(tensor))
    scattered = [each[1:] for each in wires.sent if each[0] == 1 and each[1] == 1]
    gathered = [each[1:] for each in wires.sent if each[0] == 2 and each[1] == 1]
    assert sorted(scattered) == [(1, 0, 2), (1, 2, 3)], "parts of 2, 2 and 3 values"
    assert sorted(gathered) == [(1, 0, 2), (1, 2, 2)], "its own part to both"


def test_parts_are_as_equal_as_they_can_be(wires: Wires) -> None:
    groups = ranks_of(wires, [[0, 1, 2], [3, 4, 5]])[4]
    for size, parts in ((7, [2, 2, 3]), (6, [2, 2, 2]), (1, [0, 0, 1]), (0, [0, 0, 0])):
        values = torch.arange(size)
        assert [part.numel() for part in groups._parts(values)] == parts
        assert torch.equal(torch.cat(groups._parts(values)), values)
    assert groups._others == [0, 2]


def test_many_buckets_keep_their_order(wires: Wires) -> None:
    groups = ranks_of(wires, [[0, 1], [2, 3]])
    tensors = [{rank: torch.full((5,), float(rank + 10 * number)) for rank in groups} for number in range(20)]
    futures = [groups[rank]._start(each[rank]) for each in tensors for rank in groups]
    for future in futures:
        future.wait()
    for number, each in enumerate(tensors):
        assert all(tensor.tolist() == [6.0 + 40 * number] * 5 for tensor in each.values())


def test_threads_are_started_once(wires: Wires) -> None:
    alone = ranks_of(wires, [[0]])[0]
    alone.allreduce(torch.ones(1))
    entrance = alone._entrance
    assert entrance is not None
    alone.allreduce(torch.ones(1))
    assert alone._entrance is entrance


def test_an_error_reaches_whoever_waits_and_no_later_phase_runs(wires: Wires) -> None:
    groups = ranks_of(wires, [[0, 1], [2, 3]])
    wires.broken = RuntimeError("the wire is cut")
    with pytest.raises(RuntimeError, match="the wire is cut"):
        groups[0].allreduce(torch.ones(4))
    assert wires.sent == []


def test_values_that_were_summed_elsewhere_go_back_to_their_tensor() -> None:
    tensor = torch.ones(3)
    made = hierarchical._Bucket(tensor)
    assert made.on_cpu() is tensor, "a CPU's values are there already"
    made.values = torch.tensor([4.0, 5.0, 6.0])
    made.back_to_device()
    assert tensor.tolist() == [4.0, 5.0, 6.0]
    made.finish()
    assert made.future.value() is tensor


def whole(wires: Wires, names: str, **more: Any) -> Group:
    """A process group whose ranks 1, 2, ... are on hosts of these letters; this is rank 1."""
    wires.rank = 1
    wires.names = dict(enumerate(names, 1))
    return Group(1, list(wires.names), 0, more.get("backends", wires.backends))


@pytest.mark.parametrize(
    ("names", "why_not"),
    [
        ("aaaa", "all ranks are on one host"),
        ("abcd", "every host has one rank"),
        ("aabbb", "the hosts have different numbers of ranks (2, 3)"),
        ("abb", "the hosts have different numbers of ranks (1, 2)"),
    ],
)
def test_a_missing_hierarchy_is_refused_with_a_reason(
    wires: Wires, names: str, why_not: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_HOST", names[0])
    assert prepare(whole(wires, names)) == why_not  # type: ignore[arg-type]
    assert wires.made == []


def test_a_rank_is_on_the_host_of_its_machine_unless_it_is_named(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "b")
    assert prepare(whole(wires, "aab")) == "the hosts have different numbers of ranks (2, 1)"  # type: ignore[arg-type]
    monkeypatch.setenv("SCALESCOPE_HOST", "a")
    assert prepare(whole(wires, "aaa")) == "all ranks are on one host"  # type: ignore[arg-type]


def test_hosts_are_told_by_their_names(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALESCOPE_HOST", "a")
    mixed = whole(wires, "abba", backends="cpu:gloo")
    found: Any = prepare(mixed)  # type: ignore[arg-type]
    assert (found.hosts, found.ranks_per_host) == (2, 2)
    assert wires.made == [([1, 4], "gloo", True), ([1, 4], "gloo", True), ([1, 2], "gloo", True)]
    assert prepare(mixed) is found is prepared(mixed)  # type: ignore[arg-type]
    assert len(wires.made) == 3, "only the first call talks"


def test_the_group_of_all_keeps_the_backend_of_each_device(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALESCOPE_HOST", "a")
    assert prepare() == "there is no process group"
    wires.group.WORLD = whole(wires, "aabb")
    assert isinstance(prepare(), Groups)
    assert {backend for _, backend, _ in wires.made} == {None}


def test_without_a_backend_on_cpus_names_travel_through_a_group_of_their_own(
    wires: Wires, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALESCOPE_HOST", "a")
    assert prepare(whole(wires, "aa", backends="cuda:nccl")) == "all ranks are on one host"  # type: ignore[arg-type]
    assert wires.made == [([1, 2], "gloo", True)]
    assert [group.ranks for group in wires.destroyed] == [[1, 2]]


def test_other_backends_are_named(wires: Wires) -> None:
    odd = whole(wires, "aabb", backends="cpu:mpi,cuda:nccl,xpu:ccl")
    assert prepare(odd) == "it works over gloo and nccl, not over ccl and mpi"  # type: ignore[arg-type]


def test_a_group_that_nobody_prepared_says_so(wires: Wires) -> None:
    assert prepared(whole(wires, "aabb")) == "its groups were not prepared"  # type: ignore[arg-type]
