"""Findings of FSDP2, on real traces of a GPU and in real trainings over gloo with one thing planted each."""

import subprocess
import sys
from pathlib import Path

import pytest
from made_sharded import made

from scalescope.diagnosis.explanation import explained
from scalescope.diagnosis.sharded_replay import sharded_replay_of
from scalescope.diagnosis.sources import explain_traces
from scalescope.diagnosis.traces import read_job
from scalescope.records.explanation import Explanation, Finding

TESTS = Path(__file__).parents[1]
KINETO = TESTS / "data" / "traces" / "kineto"
OF_SHARDING = {"synchronized_micro_batches", "second_gathers", "unprefetched_gathers", "small_groups"}
PLANTED = {
    "synchronized": "synchronized_micro_batches",
    "gathered_twice": "second_gathers",
    "small_groups": "small_groups",
    "late": "straggler",
}


def on_gpu(name: str) -> dict[str, Finding]:
    found = explain_traces([KINETO / f"fsdp_{name}"])
    return {finding.id: finding for finding in found.findings}


def test_gathers_that_nothing_prefetches_are_found_and_gain_what_prefetching_gains(tmp_path: Path) -> None:
    before = explain_traces([made(tmp_path / "rank0.json", prefetch=False)])
    after = explain_traces([made(tmp_path / "other.rank0.json", prefetch=True)])
    (finding,) = (each for each in before.findings if each.id == "unprefetched_gathers")
    assert "set_modules_to_forward_prefetch" in finding.change
    assert finding.gain_from == "replay"
    assert (before.step_s or 0.0) / (1 + (finding.gain or 0.0)) == pytest.approx(after.step_s, rel=0.03)
    assert "unprefetched_gathers" not in {each.id for each in after.findings}


@pytest.mark.parametrize("name", ["busy", "busy_prefetch", "nccl", "accumulated"])
def test_a_replayed_step_takes_as_long_as_it_took(name: str) -> None:
    job = read_job([KINETO / f"fsdp_{name}"])
    seen = sharded_replay_of(job, explained(job))
    assert seen is not None
    assert seen.replayed_s == pytest.approx(seen.seen_s, rel=0.05)
    assert seen.step.forward_prefetch == (name == "busy_prefetch")
    assert seen.saved_s(seen.step.without_reshard()) < 0.5 * seen.seen_s


@pytest.mark.parametrize("name", ["busy", "busy_prefetch"])
def test_a_host_that_is_late_gains_little_by_prefetching(name: str) -> None:
    """Traced steps of this host are as long as its launches."""
    assert "unprefetched_gathers" not in on_gpu(name)


def test_a_gpu_that_waits_for_its_host_is_not_told_to_prefetch() -> None:
    found = on_gpu("accumulated")
    assert "idle_device" in found
    assert "unprefetched_gathers" not in found
    assert found["synchronized_micro_batches"].evidence["reductions per step"] == "68"
    assert found["synchronized_micro_batches"].evidence["of them before the last micro-batch"] == "51"
    assert found["synchronized_micro_batches"].gain_from == "replay"


def test_a_late_host_gains_by_what_it_need_not_issue() -> None:
    """In this trace it needs 0.76 ms to issue a reduction; three of four micro-batches go without their 17."""
    job = read_job([KINETO / "fsdp_accumulated"])
    seen = sharded_replay_of(job, explained(job))
    assert seen is not None
    assert (seen.step.passes, seen.step.syncs_every_pass) == (4, True)
    assert seen.saved_s(seen.step.synced_once()) == pytest.approx(3 * 17 * 0.76e-3, rel=0.1)


def test_passes_add_up_to_what_is_exposed() -> None:
    found = explain_traces([KINETO / "fsdp_busy"])
    assert found.accounting
    assert [(each.phase, each.operation) for each in found.exchanges] == [
        ("forward", "allgather"),
        ("backward", "allgather"),
        ("backward", "reducescatter"),
    ]
    # The rest are copies on the streams of the collectives
    told_s = sum(each.exposed_s for each in found.exchanges)
    assert 0.9 * (found.accounting.exposed_s or 0.0) < told_s <= (found.accounting.exposed_s or 0.0)


def test_modules_are_named_with_what_is_exposed_of_theirs() -> None:
    found = explain_traces([KINETO / "fsdp_busy"])
    for each in found.exchanges:
        exposed_s = each.module_exposed_s or {}
        assert (len(exposed_s), "blocks.3" in exposed_s) == (each.modules, True)
        assert sum(exposed_s.values()) == pytest.approx(each.exposed_s)
        assert list(exposed_s.values()) == sorted(exposed_s.values(), reverse=True)
    by_ddp = explain_traces([KINETO / "gloo_small"])
    assert {each.module_exposed_s for each in by_ddp.exchanges} == {None}


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
