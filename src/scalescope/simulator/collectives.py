"""Closed forms of collectives over described links: p ranks on m nodes, N bytes, q = ceil(p / m) ranks on a full node.

Every function takes numbers or numpy arrays, which broadcast, and returns seconds as an array; one rank costs 0.
A link carries both directions at once; the link between nodes is the node's own and its ranks share it.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalescope.records.cluster import Link

Array = NDArray[np.float64]


def ring_allreduce_s(size_bytes: ArrayLike, ranks: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike) -> Array:
    """2 (p - 1) latency + 2 (p - 1) / p * N / rate."""
    size, p, rate, latency = _floats(size_bytes, ranks, bytes_per_s, latency_s)
    return 2 * (p - 1) * latency + 2 * (p - 1) / p * size / rate


def tree_allreduce_s(size_bytes: ArrayLike, ranks: ArrayLike, bytes_per_s: ArrayLike, latency_s: ArrayLike) -> Array:
    """Two pipelined binary trees: 2 ceil(log2 p) hops up and down, every link carries 2 N (see `pipelined_s`)."""
    size, p, rate, latency = _floats(size_bytes, ranks, bytes_per_s, latency_s)
    hops = 2 * depth(p)
    return pipelined_s(hops, hops * latency, 2 * size / rate)


def flat_ring_allreduce_s(
    size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike, inside: Link, between: Link
) -> Array:
    """One ring through all ranks: 2 (p - m) hops inside, 2 (m - 1) between, the slowest link in use is the rate."""
    size, p, m = _floats(size_bytes, ranks, nodes)
    latency = 2 * ((p - m) * inside.latency_s + (m - 1) * between.latency_s)
    return latency + 2 * (p - 1) / p * size / _slowest(p, m, inside, between)


def flat_ring_share_s(size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike, inside: Link, between: Link) -> Array:
    """All-gather or reduce-scatter of N bytes in all: one of the two halves of `flat_ring_allreduce_s`."""
    return flat_ring_allreduce_s(size_bytes, ranks, nodes, inside, between) / 2


def flat_tree_allreduce_s(
    size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike, inside: Link, between: Link
) -> Array:
    """`tree_allreduce_s` with 2 ceil(log2 q) hops inside and 2 ceil(log2 m) between, at the slowest link's rate."""
    size, p, m = _floats(size_bytes, ranks, nodes)
    levels_inside, levels_between = depth(full_node(p, m)), depth(m)
    latency = 2 * (levels_inside * inside.latency_s + levels_between * between.latency_s)
    return pipelined_s(2 * (levels_inside + levels_between), latency, 2 * size / _slowest(p, m, inside, between))


def hierarchical_allreduce_s(
    size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike, inside: Link, between: Link
) -> Array:
    """Reduce-scatter inside, allreduce of N / q by each rank over 1 / q of the node's link, all-gather inside.

    Inside: 2 (q - 1) latency + 2 (q - 1) / q * N / rate; between: the faster of ring and tree over m nodes.
    """
    size, p, m = _floats(size_bytes, ranks, nodes)
    q = full_node(p, m)
    share, rate = size / q, between.bytes_per_s / q
    return ring_allreduce_s(size, q, inside.bytes_per_s, inside.latency_s) + np.minimum(
        ring_allreduce_s(share, m, rate, between.latency_s), tree_allreduce_s(share, m, rate, between.latency_s)
    )


def ring_broadcast_s(size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike, inside: Link, between: Link) -> Array:
    """A pipelined chain through all ranks: p - m hops inside, m - 1 between, at the slowest link's rate."""
    size, p, m = _floats(size_bytes, ranks, nodes)
    latency = (p - m) * inside.latency_s + (m - 1) * between.latency_s
    return pipelined_s(p - 1, latency, size / _slowest(p, m, inside, between))


def tree_broadcast_s(size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike, inside: Link, between: Link) -> Array:
    """A binomial tree in order of ranks, inside first, so that q ranks share the node's link between nodes.

    ceil(log2 q) (latency + N / rate) inside + ceil(log2 m) (latency + q N / rate) between.
    """
    size, p, m = _floats(size_bytes, ranks, nodes)
    q = full_node(p, m)
    near = depth(q) * (inside.latency_s + size / inside.bytes_per_s)
    return near + depth(m) * (between.latency_s + q * size / between.bytes_per_s)


def hierarchical_broadcast_s(
    size_bytes: ArrayLike, ranks: ArrayLike, nodes: ArrayLike, inside: Link, between: Link
) -> Array:
    """A binomial tree between nodes, then one inside: ceil(log2 m) and ceil(log2 q) times (latency + N / rate)."""
    size, p, m = _floats(size_bytes, ranks, nodes)
    near = depth(full_node(p, m)) * (inside.latency_s + size / inside.bytes_per_s)
    return near + depth(m) * (between.latency_s + size / between.bytes_per_s)


def pipelined_s(hops: ArrayLike, latency_s: ArrayLike, transfer_s: ArrayLike) -> Array:
    """A message over H hops of `latency_s` in all, cut into the best number of pieces k.

    The least of (H - 1 + k) (a + n / k) over k >= 1, with a the latency of a hop and n the time of the whole message on
    one link: (sqrt((H - 1) a) + sqrt(n))^2 while that takes more than one piece.
    """
    h, latency, n = _floats(hops, latency_s, transfer_s)
    a = latency / np.maximum(h, 1)
    filling = (h - 1) * n
    waiting = np.where(filling > a, 2 * np.sqrt(np.maximum(filling * a, 0)), a + filling)
    return np.where(h > 0, (h - 1) * a + n + waiting, 0.0)


def depth(ranks: ArrayLike) -> Array:
    """Levels of a binary tree: ceil(log2 p)."""
    return np.ceil(np.log2(np.asarray(ranks, dtype=np.float64)))


def full_node(ranks: ArrayLike, nodes: ArrayLike) -> Array:
    """Ranks on the fullest node: ceil(p / m)."""
    p, m = _floats(ranks, nodes)
    return np.ceil(p / m)


def _slowest(p: Array, m: Array, inside: Link, between: Link) -> Array:
    """The rate of the slowest link that p ranks on m nodes use."""
    near = np.where(p > m, inside.bytes_per_s, np.inf)
    return np.minimum(near, np.where(m > 1, between.bytes_per_s, np.inf))


def _floats(*numbers: ArrayLike) -> tuple[Array, ...]:
    return tuple(np.asarray(number, dtype=np.float64) for number in numbers)
