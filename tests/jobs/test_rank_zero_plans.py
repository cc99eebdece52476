"""Collectives of a step as rank 0 of N, next to those that ranks call that exist."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalescope.jobs.rank_zero import run_as_rank_zero

SCRIPT = Path(__file__).with_name("plan_script.py")
MODES = ("ddp", "ddp_accumulate", "fsdp2", "fsdp2_accumulate", "hsdp")
RANKS = 4


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What gloo's ranks called, by mode; all in one launch."""
    path = tmp_path_factory.mktemp("real") / "plans.json"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS))
    words = (*launcher, str(SCRIPT), str(path), *MODES)
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.launches
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", MODES)
def test_rank_zero_calls_the_collectives_that_real_ranks_call(mode: str, real: dict[str, Any], tmp_path: Path) -> None:
    record = run_as_rank_zero(
        (sys.executable, str(SCRIPT), mode), np=RANKS, threads=1, seconds=0.0, folder=tmp_path / "rank0"
    )
    expected = real[mode]
    size = {"float32": 4, "int64": 8}
    calls = [[each.operation, each.bytes // size[each.dtype]] for each in record.messages]
    sent = [
        [each.bytes // size[each.dtype] // (each.ranks if each.operation == "all_gather" else 1), each.dtype]
        for each in record.messages
    ]
    assert calls == expected["calls"]
    assert sorted(sent) == expected["sent"]
    groups = {(len(each), each[1] - each[0]) for each in expected["groups"]}
    used = {(each.ranks, each.stride) for each in record.messages}
    assert groups <= used
    assert used <= groups | {(RANKS, 1)}  # what the script itself reduces
    assert record.engine == mode.removesuffix("_accumulate")
    assert record.finite
    assert record.batch == 8 * (3 if mode.endswith("accumulate") else 1)
