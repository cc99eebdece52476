"""Findings on real traces: who is named, and what is never advised."""

import gzip
import re
from pathlib import Path

import pytest

from scalescope.diagnosis.sources import explain_traces

TRACES = Path(__file__).parents[1] / "data" / "traces"


def test_a_compiled_model_is_not_told_to_compile() -> None:
    for folder, compiled in (("cuda_compiled", True), ("nccl", False)):
        found = explain_traces([TRACES / "kineto" / folder])
        assert found.compiled == compiled
        (idle,) = (each for each in found.findings if each.id == "idle_device")
        assert ("torch.compile(model)" in idle.change) == (not compiled)


@pytest.mark.parametrize("name", ["gloo_late_cached", "gloo_late_uncached", "gloo_nocache"])
def test_the_late_rank_of_a_bare_timeline_is_named_with_the_cache_and_without(name: str) -> None:
    """In all of them rank 1 slept in every step."""
    found = explain_traces([TRACES / "horovod" / f"{name}.json.gz"])
    first, *others = found.findings
    assert found.straggler == 1
    assert (first.id, first.sentence[:7]) == ("straggler", "Rank 1 ")
    assert {each.id for each in others} <= {"exposed_communication"}
    lost_s = (found.step_s or 0.0) * (1 - 1 / (1 + (first.gain or 0.0)))
    assert found.accounting
    assert lost_s < (found.accounting.exposed_s or 0.0), "no more is gained than is waited"
    for other in others:
        assert other.gain is not None
        assert other.gain < 0.2, "waiting for the late rank is none of it"


@pytest.mark.parametrize("path", sorted((TRACES / "horovod").iterdir()), ids=lambda path: path.name)
def test_no_timeline_is_told_another_size_of_the_cache(path: Path) -> None:
    """Else one with the cache could be told to switch it off, and one without it to switch it on."""
    found = explain_traces([path])
    said = [found.straggler_note, *found.notes, *(each.change for each in found.findings)]
    assert not [line for line in said if "CACHE_CAPACITY" in line]


@pytest.mark.parametrize("name", ["gloo_mlp_mark", "mpi_cnn", "gloo_killed"])
def test_no_rank_of_a_balanced_timeline_is_named(name: str) -> None:
    found = explain_traces([TRACES / "horovod" / f"{name}.json.gz"])
    assert found.straggler is None
    assert "rank unknown: cached negotiation" in found.straggler_note


def test_a_rank_that_only_some_uncached_negotiations_name_is_not_guessed(tmp_path: Path) -> None:
    """Rank 0 is made the last one to broadcast, so that half of the negotiations that name a rank name it."""
    text = gzip.decompress((TRACES / "horovod" / "gloo_late_cached.json.gz").read_bytes()).decode()
    first, rest = text.split("NEGOTIATE_ALLREDUCE", 1)
    swapped = re.sub(r'"X", "name": "([01])"', lambda tick: f'"X", "name": "{1 - int(tick[1])}"', first)
    (tmp_path / "timeline.json").write_text(f"{swapped}NEGOTIATE_ALLREDUCE{rest}")
    found = explain_traces([tmp_path / "timeline.json"])
    assert found.horovod
    assert len(found.horovod.last_rank) == 2
    assert found.straggler is None
    assert found.findings[0].id == "negotiation"
