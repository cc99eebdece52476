"""Cost of NCCL's collectives over described links: rings and trees, with LL, LL128 and Simple.

The model and every constant are those by which NCCL itself chooses an algorithm and a protocol for a size:
https://github.com/NVIDIA/nccl, src/graph/tuning.cc (2026). A collective takes a latency, which grows with its hops,
plus its bytes over a bandwidth; both depend on the protocol. Functions take numbers or arrays, as in `collectives`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scalescope.records.cluster import Algorithm, Cluster, Gpu, Link, Operation
from scalescope.simulator.collectives import Array, full_node

PROTOCOLS = ("LL", "LL128", "Simple")
ROUTES: tuple[Algorithm, ...] = ("ring", "tree")
# Bytes per second inside a node: 16 lanes of PCIe 4 carry half of it, two NVLinks of a V100 carry it.
_NVLINK_FROM = 50e9

# How often a message goes around a ring: to be reduced, to be gathered, or both; a chain has an end.
_ROUNDS: dict[Operation, int] = {"allreduce": 2, "reducescatter": 1, "allgather": 1, "broadcast": 0}

_US = 1e-6
_GB = 1e9
# Microseconds of a collective whatever its hops, for LL, LL128 and Simple.
_BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
# Microseconds of a hop over each kind of link.
_HOP = {
    ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("nvlink", "ring"): (0.6, 1.9, 3.4),
    ("pcie", "tree"): (1.0, 1.9, 4.0),
    ("pcie", "ring"): (1.0, 2.5, 5.7),
    ("network", "tree"): (5.0, 8.5, 14.0),
    ("network", "ring"): (2.7, 4.0, 14.0),
}
_SENDING = (1.0, 1.0, 3.0)  # Microseconds that the host needs for a hop of a ring that leaves the node
# GB/s that LL reaches at most: on one node the GPU decides (an A100 where it is not known), on 2 and on more the host.
_LL_MOST = {None: 87.7, "V100": 39.0, "A100": 87.7, "H100": 141.0, "H200": 141.0, "B200": 282.0}
_LL_MOST_2, _LL_MOST_MORE = 39.0, 20.4
_PLATEAU_V100, _PLATEAU = 1.9, 1.4  # How many times longer large messages make the hops of Simple rings across nodes
_PLATEAU_BYTES = 64  # Of a rank and channel, from which on they do
_CHANNEL = 20 * _GB  # Bytes per second of an NVLink
_MOST_CHANNELS = 32
# Tenths of its bandwidth that a tree reaches, by protocol, at 64 B and at every doubling of it up to 512 MiB.
_TREE_TENTHS = (
    (10, 10, 10, 10, 9, 8, 7, 7, 7, 7, 6, 5, 4, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10, 10),
    (10, 10, 10, 10, 10, 9, 8, 8, 8, 7, 6, 6, 6, 6, 6, 6, 8, 9, 9, 9, 9, 10, 10, 10),
    (9, 9, 9, 9, 9, 9, 9, 8, 7, 6, 6, 5, 5, 5, 5, 6, 7, 8, 7, 7, 8, 9, 9, 10),
)
# From this network latency on a hop takes longer than NCCL assumes of InfiniBand and RoCE.
_SLOW_NETWORK_S = 14e-6


@dataclass(frozen=True)
class Nccl:
    """NCCL on one kind of GPU; `protocols` are those it may choose from."""

    gpu: Gpu | None = None
    nvlink: bool = True
    protocols: tuple[str, ...] = PROTOCOLS

    @classmethod
    def on(cls, cluster: Cluster, protocol: str | None) -> "Nccl":
        """NCCL on a cluster, held to one protocol or free to choose."""
        nvlink = cluster.inside is None or cluster.inside.bytes_per_s >= _NVLINK_FROM
        return cls(cluster.gpu, nvlink, (protocol,) if protocol else PROTOCOLS)

    def seconds(
        self,
        operation: Operation,
        route: Algorithm,
        size_bytes: ArrayLike,
        ranks: ArrayLike,
        nodes: ArrayLike,
        inside: Link,
        between: Link,
    ) -> Array:
        """The fastest protocol over this route, by size, ranks and nodes, which broadcast; one rank costs 0.

        `inside` is the rate at which a GPU sends to the others of its node over all of its links together, `between`
        that of a node; latencies are NCCL's own, and those of `between` as far as that network is slower.
        """
        size, p, m = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in (size_bytes, ranks, nodes)))
        slower_s = max(between.latency_s - _SLOW_NETWORK_S, 0.0)
        around = _ROUNDS[operation]
        sent = np.full(p.shape, 2.0) if route == "tree" else around * (p - 1) / p if around else 1.0
        times = []
        for protocol in self._usable():
            rate = self._rate(route, protocol, p, m, inside, between)
            if route == "tree":
                rate = rate * _reached(protocol, size)
            hops_s = self._latency_s(operation, route, protocol, p, m, slower_s)
            if route == "ring" and operation == "allreduce" and PROTOCOLS[protocol] == "Simple":
                hops_s = hops_s * self._plateau(size, p, m, inside)
            times.append(hops_s + sent * size / rate)
        return np.where(p > 1, np.min(times, axis=0), 0.0)

    def _usable(self) -> list[int]:
        """Indices of the protocols to choose from; NCCL uses LL128 by itself over NVLink only."""
        return [
            number
            for number, protocol in enumerate(PROTOCOLS)
            if protocol in self.protocols and (self.nvlink or protocol != "LL128" or len(self.protocols) == 1)
        ]

    def _plateau(self, size: Array, p: Array, m: Array, inside: Link) -> Array:
        """Factor by which hops of large messages take longer in rings across nodes; 1 elsewhere."""
        channels = max(inside.bytes_per_s / _CHANNEL, 1.0) if np.isfinite(inside.bytes_per_s) else 1.0
        large = (m > 1) & (size >= _PLATEAU_BYTES * p * channels)
        return np.where(large, _PLATEAU_V100 if self.gpu == "V100" else _PLATEAU, 1.0)

    def _rate(self, route: Algorithm, protocol: int, p: Array, m: Array, inside: Link, between: Link) -> Array:
        """Bytes per second that every rank sends."""
        # Between two nodes each half of a message is reduced on one of them: a tree needs half of what a ring needs.
        crossing = between.bytes_per_s * np.where((route == "tree") & (m == 2), 2.0, 1.0)
        rate = np.minimum(np.where(p > m, inside.bytes_per_s, np.inf), np.where(m > 1, crossing, np.inf))
        most = _GB * np.where(m == 1, _LL_MOST[self.gpu], np.where(m == 2, _LL_MOST_2, _LL_MOST_MORE))
        if route == "ring":
            return np.asarray((np.minimum(rate / 2, most), 0.92 * rate, rate)[protocol])
        rate = 0.92 * rate
        return np.asarray((np.minimum(rate / 3.8, most), rate * np.where(m > 1, 120 / 128, 7 / 9), rate)[protocol])

    def _latency_s(
        self, operation: Operation, route: Algorithm, protocol: int, p: Array, m: Array, slower_s: float
    ) -> Array:
        near = _HOP["nvlink" if self.nvlink else "pcie", route][protocol]
        far = np.where(p == m, _HOP["network", "tree"][protocol], _HOP["network", route][protocol]) + slower_s / _US
        base = _BASE[route][protocol]
        if route == "tree":
            return np.asarray(base + 2 * ((full_node(p, m) - 1) * near + np.floor(np.log2(m)) * far)) * _US
        around = _ROUNDS[operation]
        if not around:
            hop = _HOP["nvlink" if self.nvlink else "pcie", "tree" if protocol == 2 else "ring"][protocol]
            crossing = _HOP["network", "tree" if protocol == 2 else "ring"][protocol] + slower_s / _US
            return np.asarray(base + (p - m) * hop + (m - 1) * crossing) * _US
        inside_hop = np.where(m > 1, np.maximum(near, _SENDING[protocol]), near)
        return np.asarray(base + around * (p - m) * inside_hop + around * (m - 1) * far) * _US


def channels(bytes_per_s: float) -> int:
    """Number of channels that carry this rate: NCCL makes two for each link of a ring, at most 32."""
    return min(2 * max(int(bytes_per_s / _CHANNEL + 0.5), 1), _MOST_CHANNELS)


def _reached(protocol: int, size: Array) -> Array:
    """The part of its bandwidth that a tree reaches with messages of this size; between two doublings a line."""
    doublings = np.log2(np.maximum(size, 1.0) / 64)
    return np.interp(doublings, np.arange(len(_TREE_TENTHS[protocol])), _TREE_TENTHS[protocol]) / 10
