"""FSDP2's ranges in real traces of a GPU: pass, module and prefetch of every collective."""

import gzip
from collections import Counter
from pathlib import Path

import pytest
from kineto_samples import loaded, sample, written

from scalescope.traces.kineto.reading import read

BLOCKS = 16


@pytest.mark.parametrize(("name", "ahead"), [("fsdp_busy", 0), ("fsdp_busy_prefetch", BLOCKS)])
def test_every_collective_has_its_pass_and_module(name: str, ahead: int) -> None:
    trace = read(sample(name))
    issued = trace.issued
    assert issued is not None
    steps = len(trace.starts_s)
    kinds = zip(issued.phase.tolist(), trace.collectives.operation.tolist(), strict=True)
    assert Counter(kinds) == {
        ("forward", "allgather"): steps * (BLOCKS + 1),
        ("backward", "allgather"): steps * BLOCKS,  # the root keeps its parameters
        ("backward", "reducescatter"): steps * (BLOCKS + 1),
    }
    assert set(issued.module.tolist()) == {"root", *(f"blocks.{at}" for at in range(BLOCKS))}
    assert issued.prefetched[issued.phase == "forward"].sum() == steps * ahead
    gathers = (issued.phase == "backward") & (trace.collectives.operation == "allgather")
    assert issued.prefetched[gathers].all(), "FSDP2 prefetches in backward by itself"
    assert not issued.followed.any()
    assert (set(issued.group.tolist()), trace.group_ranks["default_pg"]) == ({"default_pg"}, 8)
    assert trace.device_bytes is not None
    assert trace.device_bytes > 1 << 37


def test_drawn_collectives_are_named_after_their_module() -> None:
    trace = read(sample("fsdp_busy"))
    spans = trace.spans(float(trace.starts_s[1]), float(trace.ends_s[1]))
    drawn = {span.name for span in spans if span.activity == "communication"}
    modules = ["root", *(f"blocks.{at}" for at in range(BLOCKS))]
    assert drawn == {f"{operation} of {module}" for operation in ("allgather", "reducescatter") for module in modules}


def test_reductions_of_all_but_the_last_micro_batch_are_followed_by_another_backward() -> None:
    trace = read(sample("fsdp_accumulated"))
    assert trace.issued is not None
    scatters = trace.collectives.operation == "reducescatter"
    assert scatters.sum() == 4 * (BLOCKS + 1) * len(trace.starts_s)
    assert trace.issued.followed[scatters].mean() == 0.75


def test_what_was_launched_before_the_trace_began_is_named_after_later_steps() -> None:
    """The host of these ranks was a third of the trace ahead of its GPU."""
    trace = read(sample("fsdp_nccl"))
    assert trace.issued is not None
    assert (trace.collectives.bytes < 0).any(), "their kernels tell nothing themselves"
    assert set(trace.issued.phase.tolist()) == {"forward", "backward"}
    scatters = trace.collectives.operation == "reducescatter"
    assert set(trace.issued.phase[scatters].tolist()) == {"backward"}


def test_a_trace_without_the_ranges_is_named_by_its_collectives(tmp_path: Path) -> None:
    told = loaded(sample("fsdp_busy"))
    told["traceEvents"] = [event for event in told["traceEvents"] if not event["name"].startswith("FSDP::")]
    trace = read(written(told, tmp_path / "rank0.json"))
    assert trace.issued is None
    assert trace.engine == "collectives"
    assert set(trace.collectives.operation.tolist()) == {"allgather", "reducescatter"}


@pytest.mark.parametrize("twentieth", [1, 2])
def test_a_file_that_was_cut_before_the_kernels_is_read_as_far_as_it_goes(tmp_path: Path, twentieth: int) -> None:
    """Ranges of the host stand before all work of the GPU."""
    text = gzip.decompress(sample("fsdp_busy").read_bytes())
    path = tmp_path / "rank0.json"
    path.write_bytes(text[: len(text) * twentieth // 20])
    trace = read(path)
    assert not len(trace.collectives.end_s)
    assert trace.engine == "fsdp2"
    assert trace.loss.reason
