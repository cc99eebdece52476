"""From a request to the groups that are probed and to a cluster; what ranks would write is played."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scalescope import host
from scalescope.engines.base import SHARDING
from scalescope.errors import UsageError
from scalescope.estimation import probe
from scalescope.estimation.link_probe import SIZES
from scalescope.estimation.probe import Findings, Group, findings, probe_cluster, probe_group
from scalescope.estimation.probe_ranks import Around, Line, Overlapped, ProbeTask, Round, Timed, file_of
from scalescope.jobs.rank_program import Place, RankProgram, starting_s
from scalescope.records.cluster import Costs, Overlap
from scalescope.records.job import Host
from scalescope.records.request import ProbeRequest
from told import Told


def found(copy: float = 1e-10, **more: Any) -> Findings:
    return Findings(costs=(), overlap=None, copy_s_per_byte=copy, **more)


class Launched:
    """Groups as they are probed, and what each shows; the last one from then on."""

    def __init__(self, *shown: Findings) -> None:
        self._shown = list(shown)
        self.groups: list[Group] = []
        self.devices: list[str] = []

    def __call__(self, group: Group, request: ProbeRequest, device: str, *_: object) -> Findings:
        self.groups.append(group)
        self.devices.append(device)
        return self._shown.pop(0) if len(self._shown) > 1 else self._shown[0]


def launched(monkeypatch: pytest.MonkeyPatch, *shown: Findings, gpus: int = 0) -> Launched:
    made = Launched(*shown or (found(),))
    monkeypatch.setattr(probe, "probe_group", made)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    return made


def test_one_machine_is_a_node_with_the_slots_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = launched(monkeypatch), Told()
    cluster = probe_cluster(
        ProbeRequest(backends=("gloo",), slots=4, threads_per_rank=3, seconds=2.0, rounds=5, folder="here"), told
    )
    assert (cluster.name, cluster.nodes, cluster.slots_per_node) == ("this machine", 1, 4)
    assert (cluster.device, cluster.gpu, cluster.threads_per_rank) == ("cpu", None, 3)
    assert cluster.cores_per_node == host.cores().physical
    assert [(group.ranks, group.nodes, group.hosts) for group in made.groups] == [(2, 1, ()), (4, 1, ())]
    assert told.stages == [(f"gloo among {ranks} ranks", 2.0 + starting_s(ranks), None) for ranks in (2, 4)]
    assert told.notes == []
    assert made.devices == ["cpu", "cpu"]


def test_several_hosts_are_equal_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = launched(monkeypatch), Told()
    hosts = (Host("a", 2), Host("b", 2))
    cluster = probe_cluster(ProbeRequest(backends=("gloo",), hosts=hosts, device="cpu"), told)
    assert (cluster.name, cluster.nodes, cluster.slots_per_node) == ("a,b", 2, 2)
    assert [(group.ranks, group.nodes) for group in made.groups] == [(2, 1), (2, 2), (4, 2)]
    assert [words for words, _, _ in told.stages] == [
        "gloo among 2 ranks",
        "gloo among 2 ranks on 2 nodes",
        "gloo among 4 ranks on 2 nodes",
    ]
    with pytest.raises(UsageError, match="hosts with different slots: a cluster has equal nodes"):
        probe_cluster(ProbeRequest(hosts=(Host("a", 2), Host("b", 3))), told)


def test_without_slots_a_machine_has_those_of_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    assert probe_cluster(ProbeRequest(), Told()).slots_per_node == host.slots("cpu")
    assert probe_cluster(ProbeRequest(hosts=(Host("a", 5),)), Told()).slots_per_node == 5


def test_findings_of_all_groups_make_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = [
        Costs(
            backend="gloo",
            operation="allreduce",
            ranks=ranks,
            nodes=1,
            sizes_bytes=(4,),
            seconds=(1.0,),
            cpu_seconds=(1.0,),
            error=0.1,
        )
        for ranks in (2, 4, 8)
    ]
    overlap = Overlap(backend="gloo", ranks=4, nodes=1, compute=1.5, communication=1.5)
    launched(
        monkeypatch,
        Findings(costs=(costs[0],), overlap=None, copy_s_per_byte=9e-10, disturbed="busy", remark="2 of 5 rounds"),
        Findings(costs=(costs[1],), overlap=overlap, copy_s_per_byte=1e-10, disturbed="busy"),
        Findings(costs=(costs[2],), overlap=None, copy_s_per_byte=2e-10, disturbed="wild"),
    )
    told = Told()
    cluster = probe_cluster(ProbeRequest(backends=("gloo",), slots=8), told)
    assert cluster.costs == tuple(costs)
    assert cluster.overlaps == (overlap,)
    assert cluster.copy_s_per_byte == 2e-10, "the middle one"
    assert cluster.disturbed == "busy; wild"
    assert told.notes == ["Gloo among 2 ranks: 2 of 5 rounds."]


def test_on_a_gpu_copies_are_known_by_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    made = launched(monkeypatch, gpus=2)
    monkeypatch.setattr(host, "cards", lambda: [host.Card("NVIDIA H200", 0)])
    cluster = probe_cluster(ProbeRequest(backends=("nccl",)), Told())
    assert (cluster.device, cluster.gpu, cluster.copy_s_per_byte, cluster.slots_per_node) == ("gpu", "H200", 0.0, 2)
    assert made.devices == ["cuda"]
    assert probe_cluster(ProbeRequest(device="cpu", slots=2, backends=("gloo",)), Told()).copy_s_per_byte == 1e-10


def test_a_backend_that_is_not_here_is_refused_before_anything_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = launched(monkeypatch)
    with pytest.raises(UsageError, match="nccl needs GPUs"):
        probe_cluster(ProbeRequest(backends=("nccl",), slots=2), Told())
    assert made.groups == []


def test_a_group_is_launched_with_its_engine_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[RankProgram] = []

    def run(program: RankProgram) -> None:
        programs.append(program)
        program.folder.mkdir()
        line = msgspec.json.encode(Timed(operation="allreduce", bytes=4, seconds=[2.0], cpu_seconds=[1.0]))
        for rank in range(program.np):
            (program.folder / file_of(rank)).write_bytes(line + b"\n")

    monkeypatch.setattr(probe, "run_ranks", run)
    group = Group(backend="horovod-gloo", ranks=3, nodes=1, hosts=(Host("a", 3),))
    asked = ProbeRequest(folder=str(tmp_path), threads_per_rank=2, seconds=1.5, rounds=4, env={"A": "1"})
    made = probe_group(group, asked, "cpu", Place(env={"B": "2"}))
    assert [(costs.ranks, costs.seconds) for costs in made.costs] == [(3, (2.0,))]
    (program,) = programs
    assert program.task == ProbeTask(
        engine="horovod", knobs={"controller": "gloo"}, device="cpu", rounds=4, seconds=1.5, sizes=SIZES
    )
    assert program.folder == tmp_path / "horovod-gloo-3-1"
    assert (program.np, program.threads_per_rank) == (3, 2)
    assert (program.hosts, program.env, program.writes) == (group.hosts, {"A": "1", "B": "2"}, "probe-rank*.jsonl")


def timed(seconds: float, size: int = 4) -> Timed:
    return Timed(operation="allreduce", bytes=size, seconds=[seconds], cpu_seconds=[seconds])


def test_repeated_rounds_are_counted_in_the_remark() -> None:
    pair = Group(backend="gloo", ranks=2, nodes=1)
    mine: list[Line] = []
    for cores in (0.9, 0.0, 0.9, 0.0, 0.0):
        mine += [timed(1.0), Round(foreign_cores=cores)]
    made = findings(pair, [mine, mine])
    assert made.remark == "2 of 5 rounds were repeated: other programs were busy"
    assert findings(pair, [mine[2:4], mine[2:4]]).remark == ""


def test_lines_after_the_end_of_a_round_belong_to_it() -> None:
    overlapped = Overlapped(layer_s=1.0, layer_overlapped_s=2.0, message_s=1.0, message_overlapped_s=1.0)
    mine: list[Line] = [timed(1.0), timed(2.0, 8), Round(foreign_cores=0.9), overlapped, Around(copy_s_per_byte=1e-10)]
    mine += [timed(3.0), timed(4.0, 8), Round(foreign_cores=0.0)]
    made = findings(Group(backend="gloo", ranks=1, nodes=1), [mine])
    assert made.costs[0].sizes_bytes == (4, 8)
    assert made.costs[0].seconds == (3.0, 4.0)
    assert made.overlap is None, "it was made in the disturbed round"


def test_a_host_is_as_disturbed_as_its_ranks_say_on_average() -> None:
    four = Group(backend="gloo", ranks=4, nodes=2)
    ends = (0.5, 0.0, 0.0, 0.0)
    made = findings(four, [[timed(1.0), Round(foreign_cores=cores)] for cores in ends])
    assert made.disturbed == "", "0.25 cores"
    ends = (0.0, 0.0, 0.5, 0.6)
    made = findings(four, [[timed(1.0), Round(foreign_cores=cores)] for cores in ends])
    assert made.disturbed == "other programs kept 0.6 cores or more busy in every round of the probe"


def test_a_tenth_of_the_repetitions_is_left_out_from_ten_on() -> None:
    def cost(repetitions: int) -> float:
        seconds = [1.0] * (repetitions - 1) + [11.0]
        line = Timed(operation="allreduce", bytes=4, seconds=seconds, cpu_seconds=seconds)
        return findings(Group(backend="gloo", ranks=1, nodes=1), [[line]]).costs[0].seconds[0]

    assert cost(10) == 1.0
    assert cost(9) == pytest.approx(19 / 9)
    assert cost(1) == 11.0


@pytest.mark.launches
def test_real_ranks_time_gathers_and_scatters_where_they_are_asked_for(tmp_path: Path) -> None:
    group = Group(backend="gloo", ranks=2, nodes=1)
    asked = ProbeRequest(folder=str(tmp_path), threads_per_rank=1, seconds=0.5, rounds=1)
    made = probe_group(group, asked, "cpu", Place(), SHARDING, sizes=(4, 1 << 16))
    assert [costs.operation for costs in made.costs] == ["allgather", "reducescatter"]
    assert all(costs.sizes_bytes == (4, 1 << 16) for costs in made.costs)
    assert all(min(costs.seconds) > 0 for costs in made.costs)
