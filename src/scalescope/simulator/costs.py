"""Cost of a collective on a Cluster: as measured there, carried over to other numbers of ranks, or as described."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalescope.engines import engine_of_backend
from scalescope.errors import UsageError
from scalescope.records.cluster import Algorithm, Cluster, Costs, Link, Operation
from scalescope.simulator import collectives
from scalescope.simulator.collectives import Array
from scalescope.simulator.nccl import ROUTES, Nccl

# Added to the relative error for each doubling of ranks or nodes: away from the nearest of those that were measured on
# both sides, and beyond all that were measured (34 % was seen after two doublings).
ERROR_PER_DOUBLING = 0.05
ERROR_BEYOND = 0.20
# Of a described link: the ring formula misses gloo by -9 to +3 % on links of known rate with 4 and 8 ranks, and nothing
# that gets worse with more ranks than that (other traffic, routes) is described.
DESCRIBED_ERROR, DESCRIBED_UP_TO, DESCRIBED_BEYOND = 0.10, 8, 0.03
STAND_IN_ERROR = 0.10  # Added where another backend's costs stand in
LARGEST_ERROR = 0.50

_FREE = Link(bytes_per_s=np.inf, latency_s=0.0)
_TINY_S = 1e-12

Form = Callable[[ArrayLike, ArrayLike, ArrayLike, Link, Link], Array]
_FORMS: dict[Operation, dict[Algorithm, Form]] = {
    "allreduce": {
        "ring": collectives.flat_ring_allreduce_s,
        "tree": collectives.flat_tree_allreduce_s,
        "hierarchical": collectives.hierarchical_allreduce_s,
    },
    "broadcast": {
        "ring": collectives.ring_broadcast_s,
        "tree": collectives.tree_broadcast_s,
        "hierarchical": collectives.hierarchical_broadcast_s,
    },
    "allgather": {"ring": collectives.flat_ring_share_s},
    "reducescatter": {"ring": collectives.flat_ring_share_s},
}
_GLOO_KNOWS: dict[Operation, dict[Algorithm, Form]] = {
    "allreduce": {"ring": collectives.flat_ring_allreduce_s},
    "broadcast": {"tree": collectives.tree_broadcast_s},
    "allgather": {"ring": collectives.flat_ring_share_s},
    "reducescatter": {"ring": collectives.flat_ring_allreduce_s},  # gloo sums everything everywhere
}
# Those that work inside nodes and between nodes one after the other; the others do both at once.
_ONE_AFTER_OTHER = {("allreduce", "hierarchical"), ("broadcast", "hierarchical"), ("broadcast", "tree")}

_SEVERAL = 0
# Where a cost comes from: tables of this many nodes (0: of several nodes, any number), tables of one node with the
# described link between nodes, or described links alone.
_Source = int | Literal["combined", "described"]


class CostModel:
    """Seconds and relative error of one operation of one backend, for any size, ranks and nodes."""

    def __init__(
        self,
        cluster: Cluster,
        backend: str,
        operation: Operation,
        algorithm: Algorithm = "auto",
        protocol: str | None = None,
    ) -> None:
        """`algorithm` and `protocol` are those that NCCL is held to; by itself the cluster's, and any protocol."""
        self._cluster, self._backend, self._operation = cluster, backend, operation
        tables = _tables(cluster, backend, operation)
        self._extra_error = 0.0
        if not tables and (stand_in := engine_of_backend(backend).stand_ins.get(backend)):
            tables = _tables(cluster, stand_in, operation)
            self._extra_error = STAND_IN_ERROR
        if not tables and operation in ("allgather", "reducescatter"):
            tables = [_as_share(table, operation) for table in _tables(cluster, backend, "allreduce")]
            self._extra_error = STAND_IN_ERROR
        counts = sorted({table.nodes for table in tables})
        groups = {count: [table for table in tables if table.nodes == count] for count in counts}
        if several := [table for table in tables if table.nodes > 1]:
            groups[_SEVERAL] = several
        self._wall = {count: _Curve(group) for count, group in groups.items()}
        self._forms = _forms(cluster, backend, operation, protocol)
        wanted = algorithm if algorithm != "auto" else cluster.algorithm
        if wanted in self._forms:
            self._forms = {wanted: self._forms[wanted]}

    def seconds(self, size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike) -> Array:
        """Wall seconds from the start of the last rank to the end; the arguments broadcast."""
        return self._evaluate(self._wall_s, size_bytes, ranks, nodes)

    def error(self, ranks: ArrayLike, nodes: ArrayLike) -> Array:
        """Relative standard error of `seconds`; it grows with the distance from what was measured."""
        return self._evaluate(self._relative_error, 0, ranks, nodes)

    def _evaluate(self, part: Callable[[_Source, Array, Array, Array], Array], *numbers: ArrayLike) -> Array:
        """`part` of each source where it applies; 0 for one rank."""
        size, p, m = np.broadcast_arrays(*(np.asarray(number, dtype=np.float64) for number in numbers))
        result = np.zeros(p.shape)
        for here, source in self._sources(m):
            chosen = here & (p > 1)
            if chosen.any():
                result[chosen] = part(source, size[chosen], p[chosen], m[chosen])
        return result

    def _sources(self, m: Array) -> list[tuple[NDArray[np.bool_], _Source]]:
        """Sources of costs, nearest to what was measured, each with a mask of the node counts `m` that it serves."""
        counts = [count for count in self._wall if count != _SEVERAL]
        sources: list[tuple[NDArray[np.bool_], _Source]] = [(m == count, count) for count in counts]
        other = ~np.isin(m, counts)
        measured = _SEVERAL in self._wall
        one_node: _Source = _SEVERAL if measured and not self._cluster.inside else "described"
        several_nodes: _Source = _SEVERAL if measured else "combined" if 1 in self._wall else "described"
        return [*sources, (other & (m == 1), one_node), (other & (m > 1), several_nodes)]

    def _wall_s(self, source: _Source, size: Array, p: Array, m: Array) -> Array:
        if isinstance(source, int):
            return self._wall[source](size, p)
        between = self._between(p, m)
        if source == "described":
            result = np.empty(p.shape)
            for inside, here in self._insides(p, m):
                place = size[here], p[here], m[here]
                result[here] = _fastest([form(*place, inside, between) for form in self._forms.values()])
            return result
        choices = []
        for name, form in self._forms.items():
            near = self._wall[1](size, p if name == "ring" else collectives.full_node(p, m))
            far = form(size, p, m, _FREE, between)
            choices.append(near + far if (self._operation, name) in _ONE_AFTER_OTHER else np.maximum(near, far))
        return _fastest(choices)

    def _relative_error(self, source: _Source, _size: Array, p: Array, m: Array) -> Array:
        described = DESCRIBED_ERROR + DESCRIBED_BEYOND * np.maximum(np.log2(p / DESCRIBED_UP_TO), 0.0)
        if source == "described":
            return np.minimum(described, LARGEST_ERROR)
        if source == "combined":
            near = self._wall[1].error(np.maximum(collectives.full_node(p, m), 2.0), np.ones_like(m))
            error = np.maximum(near, described)
        else:
            error = self._wall[source].error(p, m)
        return np.minimum(error + self._extra_error, LARGEST_ERROR)

    def _insides(self, p: Array, m: Array) -> list[tuple[Link, NDArray[np.bool_]]]:
        """The links inside a node, and where each of them is used: fewer ranks may have fewer of them."""
        whole = self._cluster.inside
        if whole is None:
            if (p > m).any():
                raise self._nothing_known("inside a node", "inside")
            return [(_FREE, np.ones(p.shape, dtype=bool))]
        ranks, found, left = collectives.full_node(p, m), [], np.ones(p.shape, dtype=bool)
        for among in sorted(self._cluster.among, key=lambda each: each.ranks):
            here = left & (ranks <= among.ranks)
            found.append((Link(bytes_per_s=among.bytes_per_s, latency_s=whole.latency_s), here))
            left = left & ~here
        return [*found, (whole, left)]

    def _between(self, p: Array, m: Array) -> Link:
        if self._cluster.between or not (m > 1).any():
            return self._cluster.between or _FREE
        raise self._nothing_known("between nodes", "between")

    def _nothing_known(self, where: str, table: str) -> UsageError:
        what = f"measured {self._operation} costs for {self._backend}{' between nodes' if table == 'between' else ''}"
        return UsageError(
            f"cluster.toml describes no link {where} and no {what}: "
            f"add [{table}] bandwidth and latency, or run scalescope probe"
        )


class _Curve:
    """Measured tables as a function of size and ranks.

    Between measured sizes a time is linear in the size (a line in log-log misses gloo at 16 MiB by 7 to 50 % from 1 and
    64 MiB, this one by 1 to 8 %), below the smallest it is constant, above the largest it grows at the marginal
    bandwidth of the last two; it never falls with the size. Over ranks each size follows
    b 2 (p - 1) + c 2 (p - 1) / p + a (broadcast: b ceil(log2 p) + a) by non-negative least squares, with as many terms
    as there are numbers of ranks, bent to pass through what was measured.
    """

    def __init__(self, tables: Sequence[Costs]) -> None:
        self._operation = tables[0].operation
        self._measured = [(table.ranks, table.nodes, table.error) for table in tables]
        sizes = sorted({size for table in tables for size in table.sizes_bytes})
        self._sizes = np.array(sizes if len(sizes) > 1 else [sizes[0], 2 * sizes[0]], dtype=np.float64)
        self._ranks = np.array(sorted({table.ranks for table in tables}), dtype=np.float64)
        logs = [
            [np.log(_at_sizes(table, self._sizes)) for table in tables if table.ranks == ranks] for ranks in self._ranks
        ]
        times = np.exp([np.mean(same, axis=0) for same in logs])
        self._coefficients = _fit(self._operation, self._ranks, times)
        self._bend = np.log(times / self._fitted(self._ranks))

    def __call__(self, size: Array, ranks: Array) -> Array:
        """Seconds, elementwise."""
        distinct, rows = np.unique(ranks, return_inverse=True)
        knots = self._knots(distinct)
        right = np.clip(np.searchsorted(self._sizes, size, side="right"), 1, len(self._sizes) - 1)
        low, high = knots[rows, right - 1], knots[rows, right]
        start = self._sizes[right - 1]
        share = (np.maximum(size, self._sizes[0]) - start) / (self._sizes[right] - start)
        return np.asarray(low + (high - low) * share)

    def error(self, ranks: Array, nodes: Array) -> Array:
        """Relative error: that of the nearest table, and more with the distance from it, most beyond all tables."""
        measured = np.array(self._measured)
        doublings = abs(np.log2(ranks[:, None] / measured[:, 0])) + abs(np.log2(nodes[:, None] / measured[:, 1]))
        nearest = doublings.argmin(axis=1)
        beyond = sum(
            np.maximum(np.log2(asked / known.max()), 0.0) + np.maximum(np.log2(known.min() / asked), 0.0)
            for asked, known in ((ranks, measured[:, 0]), (nodes, measured[:, 1]))
        )
        between = np.maximum(doublings.min(axis=1) - beyond, 0.0)
        return np.asarray(measured[nearest, 2] + ERROR_PER_DOUBLING * between + ERROR_BEYOND * beyond)

    def _knots(self, ranks: Array) -> Array:
        """Times at the measured sizes (columns), by ranks (rows)."""
        log_ranks, at = np.log(ranks), np.log(self._ranks)
        bend = np.stack([np.interp(log_ranks, at, column) for column in self._bend.T], axis=1)
        return np.maximum.accumulate(self._fitted(ranks) * np.exp(bend), axis=1)

    def _fitted(self, ranks: Array) -> Array:
        terms = _terms(self._operation, ranks)[:, : self._coefficients.shape[1]]
        return np.maximum(terms @ self._coefficients.T, _TINY_S)


def _fit(operation: Operation, ranks: Array, times: Array) -> Array:
    """Coefficients of the first terms, at most as many as there are ranks; a row for each size."""
    terms = _terms(operation, ranks)
    if len(ranks) == 1 and operation != "broadcast":  # the floor goes with the hops, the rest with the bytes sent
        floor = times[0, 0]
        return np.stack([np.full_like(times[0], floor) / terms[0, 0], (times[0] - floor) / terms[0, 1]], axis=1)
    from scipy.optimize import nnls

    used = terms[:, : len(ranks)]
    return np.array([nnls(used / each[:, None], np.ones_like(each))[0] for each in times.T])  # relative errors count


def _terms(operation: Operation, ranks: Array) -> Array:
    """Terms of time by ranks, as columns: ring hops, bytes a rank sends, a constant; or tree levels, a constant."""
    hops = 2 * (ranks - 1)
    columns = [collectives.depth(ranks)] if operation == "broadcast" else [hops, hops / ranks]
    return np.stack([*columns, np.ones_like(ranks)], axis=1)


def _at_sizes(table: Costs, sizes: Array) -> Array:
    """A table's times at other sizes, never falling with the size."""
    own = np.array(table.sizes_bytes, dtype=np.float64)
    times = np.maximum.accumulate(np.maximum(np.array(table.seconds), _TINY_S))
    marginal = (times[-1] - times[-2]) / (own[-1] - own[-2]) if len(own) > 1 else times[0] / own[0]
    return np.asarray(np.interp(sizes, own, times) + marginal * np.maximum(sizes - own[-1], 0))


def _tables(cluster: Cluster, backend: str, operation: Operation) -> list[Costs]:
    return [
        table for table in cluster.costs if (table.backend, table.operation) == (backend, operation) and table.ranks > 1
    ]


def _as_share(table: Costs, operation: Operation) -> Costs:
    """Estimate the costs of an all-gather or a reduce-scatter from those measured of allreduce, which is both.

    Over gloo a reduce-scatter is an allreduce.
    """
    part = 1.0 if operation == "reducescatter" and table.backend.endswith("gloo") else 0.5
    seconds = tuple(part * seconds for seconds in table.seconds)
    return msgspec.structs.replace(table, operation=operation, seconds=seconds)


def _forms(cluster: Cluster, backend: str, operation: Operation, protocol: str | None) -> dict[Algorithm, Form]:
    """The ways a backend has for an operation: gloo one, NCCL rings and trees, others all that there are.

    A cluster that says how its links are used can name any of them, for every backend but NCCL's broadcast.
    """
    known = _FORMS[operation]
    if backend.endswith("nccl"):
        nccl = Nccl.on(cluster, protocol)
        routes = ROUTES if operation == "allreduce" else ROUTES[:1]
        own: dict[Algorithm, Form] = {route: partial(nccl.seconds, operation, route) for route in routes}
        if cluster.algorithm == "hierarchical" and "hierarchical" in known:
            own["hierarchical"] = known["hierarchical"]
        return own
    if backend.endswith("gloo") and (cluster.algorithm == "auto" or cluster.algorithm not in known):
        return _GLOO_KNOWS[operation]
    return known


def _fastest(times: Sequence[Array]) -> Array:
    return np.asarray(np.min(times, axis=0))
