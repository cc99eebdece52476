"""probe: what do links and cores give?"""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope import host
from scalescope.engines import USUAL, engine_of_backend
from scalescope.records.files import CLUSTER
from scalescope.records.job import Host
from scalescope.records.request import ProbeRequest
from scalescope.records.store import in_folder
from scalescope.show import document_of
from scalescope.text import plural
from scalescope.units import format_seconds
from scalescope.verbs.verb import SHOWN, Ending, Screen, Verb, folder_of, from_here, room

if TYPE_CHECKING:
    from scalescope.records.cluster import Cluster


def _plan_probe(request: ProbeRequest) -> Iterable[str]:
    from scalescope.estimation.probe import groups
    from scalescope.jobs.rank_program import starting_s

    slots = request.slots or max((each.slots for each in request.hosts), default=0) or host.slots(request.device)
    hosts = request.hosts or tuple(
        Host(f"NODE{number}", slots) for number in range(1, max(request.nodes, default=1) + 1)
    )
    seconds = 0.0
    for backend in request.backends or ("gloo or nccl",):
        for group in groups(backend, slots, hosts):
            yield f"# {backend} among {plural(group.ranks, 'rank')} on {plural(group.nodes, 'node')}"
            seconds += request.seconds + starting_s(group.ranks)
    yield f"# about {format_seconds(seconds)}"


def _probed(folder: Path) -> "Cluster":
    from scalescope.records.cluster_file import load_cluster

    return in_folder(load_cluster(folder / CLUSTER), folder)


def of_cluster(cluster: "Cluster", request: ProbeRequest, screen: Screen) -> Ending:
    """End with what a probe found."""

    folder, document = folder_of(cluster), document_of(cluster)
    file = from_here(folder / CLUSTER)
    engine = engine_of_backend(cluster.costs[0].backend if cluster.costs else request.backends[0])
    options = "" if engine is USUAL else f" --engine {engine.name}"
    options += " --device cpu" if request.device == "cpu" else ""  # otherwise a GPU that is here would be profiled
    follow = f"scalescope estimate resnet18 --cluster {shlex.quote(str(file))}{options}"
    return Ending(document, follow, lambda: [*screen.figures(document, folder), f"Cluster: {file}"])


VERB = Verb(
    "probe",
    ProbeRequest,
    "How fast is the network? Times collectives among ranks, alone and during compute; writes cluster.toml.",
    room("scalescope.estimation.probe", "probe_request"),
    room("scalescope.estimation.probe", "probe"),
    ("resume", "dry_run", *SHOWN),
    _plan_probe,
    kept=lambda request, said: "; type the same command to start over",
    end=of_cluster,
    record=_probed,
)
