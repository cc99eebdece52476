"""Findings on real traces: who is named, and what is never advised."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from scalescope.diagnosis.sources import explain_traces
from scalescope.show import document_of
from scalescope.show.explanation import engine_words

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


# Shares of the same steps by brute force over kernels, whose totals are HolisticTraceAnalysis' own (0.5.0) where both
# look at the same window: compute with copies, exposed communication, nothing.
PUBLIC = {
    "nccl_alltoall": ("ddp", {"alltoall": 14, "allreduce": 6}, (0.665, 0.171, 0.164)),
    "nccl_allreduces": ("collectives", {"allreduce": 404}, (0.374, 0.173, 0.453)),
    "nccl_mixed": (
        "ddp",
        {"alltoall": 18, "reducescatter": 4, "allreduce": 4, "allgather": 4},
        (0.205, 0.152, 0.643),
    ),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_trace_is_named_after_what_it_shows_and_shares_agree(name: str) -> None:
    engine, collectives, shares = PUBLIC[name]
    found = explain_traces([TRACES / "kineto" / name])
    assert (found.engine, found.collectives) == (engine, collectives)
    parts = found.accounting
    assert parts
    assert parts.compute_s is not None
    assert parts.exposed_s is not None
    idle_s = parts.other_s + (parts.input_s or 0.0)
    assert [each / parts.step_s for each in (parts.compute_s, parts.exposed_s, idle_s)] == pytest.approx(
        shares, abs=0.002
    )


def test_what_the_engine_does_not_send_is_named_and_advised_otherwise() -> None:
    mixed = explain_traces([TRACES / "kineto" / "nccl_alltoall"])
    assert engine_words(mixed) == "ddp with 14 alltoall over nccl on cuda"
    (exposed,) = (each for each in mixed.findings if each.id == "exposed_communication")
    assert "of it alltoall)" in exposed.sentence
    assert "no_sync" not in exposed.change, "it would save DDP's allreduces only"
    alone = explain_traces([TRACES / "kineto" / "nccl_allreduces"])
    assert engine_words(alone) == "404 allreduce over nccl on cuda"
    assert not [each for each in alone.findings if "no_sync" in each.change]
    own = explain_traces([TRACES / "kineto" / "nccl"])
    assert engine_words(own) == "ddp over nccl on cuda"


def test_files_of_a_folder_that_are_no_traces_are_counted(tmp_path: Path) -> None:
    for rank in (0, 1):
        name = f"rank{rank}.json.gz"
        shutil.copy(TRACES / "kineto" / "gloo_small" / name, tmp_path / name)
    assert not explain_traces([tmp_path]).notes
    for name in ("train.log", "table.csv", ".hidden"):
        (tmp_path / name).write_text("x")
    assert explain_traces([tmp_path]).notes == (f"2 other files of {tmp_path.name} passed over: no traces",)


def test_shares_of_other_bases_name_them() -> None:
    """The answer's shares are of the mean step over ranks; findings of one rank, or of the median step, say so."""
    explanation = explain_traces([TRACES / "kineto" / "gloo_small"])
    assert "A traced 29.8 ms step (27.6 ms in the mean) is" in document_of(explanation).answer
    told = {finding.id: finding.sentence for finding in explanation.findings}
    assert "7.37 ms of a step (30 % of rank 1's step," in told["exposed_communication"]
    assert told["uneven_ranks"].endswith("(median over steps).")
