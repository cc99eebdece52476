"""The cluster that is here: this machine or named hosts, probed group by group."""

import importlib.util
from pathlib import Path
from typing import Protocol

from scalescope import host
from scalescope.engines import engine_of_backend
from scalescope.errors import UsageError
from scalescope.estimation.probe import Findings, Group, probe_group
from scalescope.jobs.rank_program import starting_s
from scalescope.records.cluster import BACKENDS, Cluster
from scalescope.records.job import Host
from scalescope.records.request import ProbeRequest


class Audience(Protocol):
    """Who is told how a probe goes on."""

    def stage(self, what: str, seconds: float | None) -> None:
        """A part of the work begins that takes about so long."""

    def remark(self, text: str) -> None:
        """Something that a reader of the result should know."""

    def tick(self, done: int) -> None:
        """So many lines of it are there."""


def probe_cluster(request: ProbeRequest, audience: Audience) -> Cluster:
    """Probe every group of ranks with every backend that is asked for."""
    device = request.device
    gpus = 0 if device == "cpu" else host.gpus()
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    slots = request.slots or max((each.slots for each in request.hosts), default=0) or host.slots(device)
    if request.hosts and len({each.slots for each in request.hosts}) > 1:
        raise UsageError("--hosts names hosts with different slots: a cluster has equal nodes; give each the same")
    found: list[Findings] = []
    for backend in request.backends:
        check_backend(backend, device)
        for group in groups(backend, slots, request.hosts):
            words = f"{backend} among {group.ranks} ranks" + (f" on {group.nodes} nodes" if group.nodes > 1 else "")
            audience.stage(words, request.seconds + starting_s(group.ranks))
            found.append(
                probe_group(
                    group,
                    folder=Path(request.folder) / f"{backend}-{group.ranks}-{group.nodes}",
                    threads_per_rank=request.threads_per_rank,
                    seconds=request.seconds,
                    rounds=request.rounds,
                    tell=audience.tick,
                    device=device,
                    ssh=request.ssh,
                    env=request.env,
                    timeout_s=request.timeout_s,
                )
            )
            if found[-1].remark:
                audience.remark(f"{words}: {found[-1].remark}")
    copies = [finding.copy_s_per_byte for finding in found]
    return Cluster(
        name="this machine" if not request.hosts else ",".join(each.name for each in request.hosts),
        nodes=max(len(request.hosts), 1),
        slots_per_node=slots,
        cores_per_node=host.cores().physical,
        device="gpu" if device == "cuda" else "cpu",
        copy_s_per_byte=sorted(copies)[len(copies) // 2] if copies else 0.0,
        costs=tuple(cost for finding in found for cost in finding.costs),
        overlaps=tuple(finding.overlap for finding in found if finding.overlap),
        threads_per_rank=request.threads_per_rank,
        disturbed="; ".join(dict.fromkeys(finding.disturbed for finding in found if finding.disturbed)),
    )


def groups(backend: str, slots: int, hosts: tuple[Host, ...]) -> list[Group]:
    """Which ranks are probed together: 2, 4 and all of a node, then one of each node, and everything."""
    counts = sorted({count for count in (2, 4, slots) if 1 < count <= slots})
    first = (Host(hosts[0].name, slots),) if hosts else ()
    found = [Group(backend=backend, ranks=count, nodes=1, hosts=first) for count in counts]
    for count in sorted({2, len(hosts)}) if len(hosts) > 1 else ():
        several = hosts[:count]
        ones = tuple(Host(host.name, 1) for host in several)
        found.append(Group(backend=backend, ranks=count, nodes=count, hosts=ones))
        if slots > 1:
            found.append(Group(backend=backend, ranks=count * slots, nodes=count, hosts=several))
    return found


def check_backend(backend: str, device: str) -> None:
    """A clear line for a backend that is not here."""
    if backend not in BACKENDS:
        raise UsageError(f"there is no backend '{backend}': choose from {', '.join(BACKENDS)}")
    if backend.endswith("nccl") and device != "cuda":
        raise UsageError(f"{backend} needs GPUs and there are none here: probe gloo instead")
    engine = engine_of_backend(backend)
    if engine.package and not importlib.util.find_spec(engine.package):
        raise UsageError(f"{backend} needs {engine.title}, which this Python does not have: docs/{engine.package}.md")
