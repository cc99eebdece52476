"""probe: what do links and cores give?"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from scalescope.engines import USUAL, engine_of_backend
from scalescope.records.request import ProbeRequest
from scalescope.show import document_of
from scalescope.verbs.verb import SHOWN, Ending, Screen, Verb, folder_of, from_here, room

if TYPE_CHECKING:
    from scalescope.records.cluster import Cluster


def _probed(folder: Path) -> "Cluster":
    from scalescope.estimation.probe import CLUSTER_FILE
    from scalescope.records.cluster_file import load_cluster

    return load_cluster(folder / CLUSTER_FILE)


def of_cluster(cluster: "Cluster", request: ProbeRequest, screen: Screen) -> Ending:
    """End with what a probe found."""
    from scalescope.estimation.probe import CLUSTER_FILE

    folder, document = folder_of(cluster), document_of(cluster)
    file = from_here(folder / CLUSTER_FILE)
    engine = engine_of_backend(request.backends[0])
    options = "" if engine is USUAL else f" --engine {engine.name}"
    options += " --device cpu" if request.device == "cpu" else ""  # otherwise a GPU that is here would be profiled
    follow = f"scalescope estimate resnet18 --cluster {shlex.quote(str(file))}{options}"
    return Ending(document, follow, lambda: [*screen.figures(document, folder), f"Cluster: {file}"])


VERB = Verb(
    "probe",
    ProbeRequest,
    "What do links and cores give? Times collectives among ranks, alone and during compute; writes cluster.toml.",
    room("scalescope.estimation.probe", "probe_request"),
    room("scalescope.estimation.probe", "probe"),
    ("resume", *SHOWN),
    kept=lambda request, said: "; type the same command to start over",
    end=of_cluster,
    record=_probed,
)
