"""Findings of FSDP2, on real traces of a GPU and in real trainings over gloo with one thing planted each."""

import subprocess
import sys
from pathlib import Path

import pytest

from scalescope.diagnosis.sources import explain_traces
from scalescope.records.explanation import Explanation, Finding

TESTS = Path(__file__).parents[1]
OF_SHARDING = {"synchronized_micro_batches", "second_gathers", "unprefetched_gathers", "small_groups"}
PLANTED = {
    "synchronized": "synchronized_micro_batches",
    "gathered_twice": "second_gathers",
    "small_groups": "small_groups",
    "late": "straggler",
}


def on_gpu(name: str) -> dict[str, Finding]:
    found = explain_traces([TESTS / "data" / "traces" / "kineto" / f"fsdp_{name}"])
    return {finding.id: finding for finding in found.findings}


def test_gathers_that_nothing_prefetches_are_found_on_a_gpu() -> None:
    finding = on_gpu("busy")["unprefetched_gathers"]
    assert "set_modules_to_forward_prefetch" in finding.change
    assert finding.gain is not None
    assert 0.03 < finding.gain < 0.12, "no more is gained than gathers of the forward are exposed"
    assert "unprefetched_gathers" not in on_gpu("busy_prefetch")


def test_a_gpu_that_waits_for_its_host_is_not_told_to_prefetch() -> None:
    found = on_gpu("accumulated")
    assert "idle_device" in found
    assert "unprefetched_gathers" not in found
    assert found["synchronized_micro_batches"].evidence["reductions per step"] == "68"
    assert found["synchronized_micro_batches"].evidence["of them before the last micro-batch"] == "51"


def test_passes_add_up_to_what_is_exposed() -> None:
    found = explain_traces([TESTS / "data" / "traces" / "kineto" / "fsdp_busy"])
    assert found.accounting
    assert [(each.phase, each.operation) for each in found.exchanges] == [
        ("forward", "allgather"),
        ("backward", "allgather"),
        ("backward", "reducescatter"),
    ]
    # The rest are copies on the streams of the collectives
    told_s = sum(each.exposed_s for each in found.exchanges)
    assert 0.9 * (found.accounting.exposed_s or 0.0) < told_s <= (found.accounting.exposed_s or 0.0)


@pytest.fixture(scope="module")
def over_gloo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Explanation]:
    """One launch trains with each of them planted in turn."""
    folder, kinds = tmp_path_factory.mktemp("traces"), (*PLANTED, "balanced", "synchronized_once")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = TESTS / "scripts" / "sharded.py"
    subprocess.run([*launch, str(script), str(folder), *kinds], check=True, capture_output=True, timeout=240)
    return {kind: explain_traces([folder / f"{kind}.rank{rank}.json" for rank in (0, 1)]) for kind in kinds}


@pytest.mark.launches
@pytest.mark.parametrize("kind", PLANTED)
def test_what_was_planted_is_found(over_gloo: dict[str, Explanation], kind: str) -> None:
    names = {finding.id for finding in over_gloo[kind].findings}
    assert PLANTED[kind] in names
    assert not names & OF_SHARDING - {PLANTED[kind]}


@pytest.mark.launches
def test_the_late_rank_is_named(over_gloo: dict[str, Explanation]) -> None:
    assert over_gloo["late"].straggler == 1


@pytest.mark.launches
@pytest.mark.parametrize("kind", ["balanced", "synchronized_once"])
def test_nothing_is_found_where_nothing_is_wrong(over_gloo: dict[str, Explanation], kind: str) -> None:
    names = {finding.id for finding in over_gloo[kind].findings}
    assert not names & {*OF_SHARDING, "straggler"}


@pytest.mark.launches
def test_reductions_of_gloo_are_communication(over_gloo: dict[str, Explanation]) -> None:
    """It reduces all of the input, and an operator of autograd goes on meanwhile."""
    found = over_gloo["synchronized"]
    scatters = next(each for each in found.exchanges if each.operation == "reducescatter")
    assert (scatters.phase, scatters.modules, scatters.count) == ("backward", 4, 16.0)
    assert scatters.exposed_s > 0.9 * scatters.seconds
    assert set(found.collectives) == {"allgather", "reducescatter"}
