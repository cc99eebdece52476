"""Fresh traces of real two-rank trainings: what was planted is what is found."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scalescope.diagnosis.explanation import transfers
from scalescope.traces.alignment import align
from scalescope.traces.kineto.reading import read
from scalescope.traces.lateness import lateness
from scalescope.traces.trace import Trace

pytestmark = pytest.mark.launches

SCRIPT = Path(__file__).with_name("kineto_training.py")
Trained = dict[str, list[Trace]]
SLEEP_S = 0.1
LOADING_S = 0.048
BUCKETS = {4 * (1024 * 512 + 512), 4 * (1024 * 1024 + 1024), 4 * (512 * 1024 + 1024)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One launch trains with each of them planted in turn; there are no shapes with the slow loader."""
    folder = tmp_path_factory.mktemp("traces")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    planted = ("none", "straggler", "slow loader")
    subprocess.run([*launch, str(SCRIPT), str(folder), *planted], check=True, capture_output=True, timeout=120)
    return {each: [read(folder / f"{each}.rank{rank}.json") for rank in (0, 1)] for each in planted}


@pytest.mark.parametrize("planted", ["straggler", "slow loader", "none"])
def test_steps_add_up(trained: Trained, planted: str) -> None:
    for rank, trace in enumerate(trained[planted]):
        assert (trace.rank, trace.world_size, trace.backend, trace.device) == (rank, 2, "gloo", "cpu")
        assert trace.steps_from == "marks"
        assert len(trace.starts_s) == 40
        parts = trace.parts
        present = [parts.compute, parts.optimizer, parts.exposed, parts.input, parts.other]
        assert np.allclose(sum(part for part in present if part is not None), parts.step)
        assert all(part is not None and (part >= -1e-9).all() for part in present)
        assert trace.loss.reason == ""


def test_buckets_are_known_with_shapes_only(trained: Trained) -> None:
    for trace in trained["none"]:
        assert set(trace.bucket_bytes) == BUCKETS
    for trace in trained["slow loader"]:
        assert trace.bucket_bytes == ()
        assert operations(trace) == {"allreduce": 120}


def operations(trace: Trace) -> dict[str, int]:
    names, counts = np.unique(trace.collectives.operation.astype(str), return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def test_a_loader_that_sleeps_is_input(trained: Trained) -> None:
    for trace in trained["slow loader"]:
        assert trace.parts.input is not None
        assert np.median(trace.parts.input) > 0.9 * LOADING_S
    for trace in trained["none"]:
        assert trace.parts.input is not None
        assert np.median(trace.parts.input) < LOADING_S / 2


def test_waiting_for_a_rank_is_exposed_communication_on_the_other(trained: Trained) -> None:
    waiting, late = trained["straggler"]
    assert waiting.parts.exposed is not None
    assert waiting.parts.compute is not None
    assert late.parts.exposed is not None
    assert np.median(waiting.parts.exposed) > 0.8 * SLEEP_S
    assert np.median(late.parts.other) > 0.8 * SLEEP_S
    assert np.median(waiting.parts.exposed) > np.median(late.parts.exposed)
    assert np.median(waiting.parts.compute) < np.median(waiting.parts.exposed)


def test_the_rank_that_sleeps_is_named_and_a_balanced_job_has_none(trained: Trained) -> None:
    late = trained["straggler"]
    found = lateness(late, align(late))
    assert found.straggler == 1
    assert found.median_late_s[1] > 0.9 * SLEEP_S
    assert found.median_late_s[0] < SLEEP_S / 2
    balanced = trained["none"]
    assert lateness(balanced, align(balanced)).straggler is None


def test_the_wait_for_the_slowest_is_not_transfer(trained: Trained) -> None:
    late, balanced = trained["straggler"], trained["none"]
    slow = {row.bytes: row for row in transfers(late, lateness(late, align(late))) if row.operation == "allreduce"}
    assert set(slow) == BUCKETS
    assert max(row.wait_s or 0.0 for row in slow.values()) > 0.8 * SLEEP_S
    usual = {row.bytes: row for row in transfers(balanced, lateness(balanced, align(balanced)))}
    assert all(slow[size].seconds < SLEEP_S and usual[size].seconds < SLEEP_S for size in BUCKETS)
    assert all(row.bus_bytes_per_s == pytest.approx(row.algorithm_bytes_per_s) for row in slow.values())
