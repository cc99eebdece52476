"""Surveys and first words of trainings that were never made."""

from typing import Any

from scalescope.tuner.controller_files import Hello

MIB = 1024 * 1024


def hello(ranks: int = 4, hosts: int = 1, **more: Any) -> Hello:
    """Rank 0's first word."""
    names = tuple(f"host{rank * hosts // ranks}" for rank in range(ranks))
    return Hello(**{"engine": "ddp", "world_size": ranks, "hosts": names, "backend": "gloo", **more})


def survey(
    mib: float = 8.0,
    *,
    tensors: int = 32,
    hosts: int = 1,
    ranks_per_host: int = 2,
    mib_per_s: float = 1000.0,
    latency_s: float = 2e-4,
    cpu_share: float = 0.8,
    backward_s: float = 0.1,
    **more: Any,
) -> dict[str, Any]:
    """Equal gradients that get ready at equal distances; between hosts, reducing inside them first halves the bytes."""

    def table(rate: float, latency: float) -> list[list[float]]:
        sizes = [4096 * 4**power for power in range(8)]
        return [[size, latency + size / MIB / rate, cpu_share * (latency + size / MIB / rate)] for size in sizes]

    costs = {"flat": table(mib_per_s, latency_s)}
    if hosts > 1:
        costs["hierarchical"] = table(2 * mib_per_s, 2 * latency_s)
    return {
        "gradients": [[f"p{index}", int(mib * MIB / tensors), 4] for index in range(tensors)],
        "ready_s": [backward_s * (index + 1) / tensors for index in range(tensors)],
        "forward_s": backward_s / 2,
        "backward_s": backward_s,
        "optimizer_s": backward_s / 10,
        "step_s": 2 * backward_s,
        "samples": 32,
        "buffers_bytes": [],
        "ranks_per_host": ranks_per_host,
        "hosts": hosts,
        "cores": ranks_per_host,
        "threads": 1,
        "costs": costs,
        "copy_s_per_byte": 1e-10,
        "backend": "gloo",
        "engine": "ddp",
        **more,
    }
