"""A measured job beside an estimate: its transfers against the probe, its step above the predicted one."""

from pathlib import Path

import msgspec

from scalescope.diagnosis.material import Material
from scalescope.errors import UsageError
from scalescope.prediction.costs import CostModel
from scalescope.prediction.predicted_step import predicted_step
from scalescope.records.cluster import Cluster, Operation
from scalescope.records.cluster_file import load_cluster
from scalescope.records.explanation import Explanation, Transfer
from scalescope.records.knobs import Knobs
from scalescope.records.profile import ModelProfile
from scalescope.records.store import load

_OPERATIONS: dict[str, Operation] = {"allreduce": "allreduce", "broadcast": "broadcast"}


def beside_estimate(explanation: Explanation, material: Material, place: Path) -> Explanation:
    """`place` is a folder of scalescope estimate, or a cluster.toml of scalescope probe."""
    file = place / "cluster.toml" if place.is_dir() else place
    if not file.is_file():
        raise UsageError(f"{place.name} holds no cluster.toml: name a folder of scalescope estimate, or a cluster.toml")
    cluster = load_cluster(file)
    backend = _backend(explanation)
    nodes = 1
    if material.record:
        nodes = max(len({rank.host for rank in material.record.ranks}), 1)
    found = tuple(_probed(transfer, cluster, backend, nodes) for transfer in explanation.transfers)
    explanation = msgspec.structs.replace(explanation, transfers=found)
    profile_file = file.parent / "profile.json"
    batch = material.record.point.batch if material.record else None
    if not profile_file.is_file() or batch is None or explanation.engine == "none":
        return explanation
    knobs = Knobs(engine=explanation.engine, values={"controller": explanation.backend} if backend[0] == "h" else {})
    ranks = explanation.world_size or len(explanation.ranks)
    predicted = predicted_step(load(profile_file, ModelProfile), cluster, knobs, ranks, batch)
    return msgspec.structs.replace(explanation, predicted_step=predicted)


def _backend(explanation: Explanation) -> str:
    return f"horovod-{explanation.backend}" if explanation.engine == "horovod" else explanation.backend


def _probed(transfer: Transfer, cluster: Cluster, backend: str, nodes: int) -> Transfer:
    known = any(costs.backend == backend for costs in cluster.costs) or cluster.inside is not None
    operation = _OPERATIONS.get(transfer.operation)
    if operation is None or not known:
        return transfer
    seconds = CostModel(cluster, backend, operation).seconds(float(transfer.bytes), transfer.ranks, nodes)
    return msgspec.structs.replace(transfer, probed_s=float(seconds))
