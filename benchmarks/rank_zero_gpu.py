"""A GPT as rank 0 of N on one GPU, against real ranks on it: step, peak memory, and what recording costs.

The truth is a real NCCL group of one, and for memory two real ranks that share the GPU over gloo. With NCCL some
launches of DDP peak higher, probably because it holds the first buckets for longer: `at most` is the largest peak seen.
`python -m benchmarks.rank_zero_gpu --layers 24 --width 1536` takes the options of examples/train_gpt.py.
"""

import re
import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks.shared import ROOT, print_table
from scalescope import host
from scalescope.errors import UsageError
from scalescope.jobs.rank_zero import run_as_rank_zero
from scalescope.records.rank_zero import RankZero

SCRIPT = str(ROOT / "examples" / "train_gpt.py")
SIZE: tuple[str, ...] = ("--layers", "24", "--width", "1536", "--heads", "16", "--vocabulary", "32000", "--batch", "8")
SIZE = (*SIZE, "--length", "1024")
RANKS = (1, 8, 64, 512)
SECONDS = 6.0  # Of steps as rank 0
_TOLD = re.compile(r"([\d.]+) ms a step, ([\d.]+) GiB at peak")


def rank_zero_gpu(*options: str) -> list[dict[str, Any]]:
    """DDP and FSDP2: as rank 0 of 1 to 512, and of 2."""
    if not host.gpus():
        raise UsageError("this section needs a GPU: run it where nvidia-smi shows one")
    rows = []
    for engine in ("ddp", "fsdp2"):
        words = (SCRIPT, "--engine", engine, *SIZE, *options)
        truth = [real(1, *words, "--steps", "60")]
        found = {np: as_rank_zero(np, *words) for np in RANKS}
        truth += [real(1, *words, "--steps", "60") for _ in range(2)]
        for np, record in found.items():
            row = {"engine": engine, "as rank 0 of": np, **_of(record)}
            if np == 1:
                row |= _against(record, truth)
            rows.append(row)
            print_table([row])
        words = (*words, "--backend", "gloo")
        record = as_rank_zero(2, *words)
        row = {"engine": f"{engine} over gloo", "as rank 0 of": 2, **_of(record)}
        rows.append(row | _against(record, [(0.0, real(2, *words, "--steps", "8")[1])]))
        print_table(rows[-1:])
    return rows


def real(ranks: int, *words: str) -> tuple[float, float]:
    """Milliseconds of a step of real ranks, and GiB at the peak of one."""
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    done = subprocess.run([*start, *words], capture_output=True, text=True, timeout=300, check=False)
    told = _TOLD.search(done.stdout)
    if told is None:
        raise RuntimeError(f"{ranks} real ranks ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return float(told[1]), float(told[2])


def as_rank_zero(np: int, *words: str) -> RankZero:
    """The same without any other rank, until enough steps were seen."""
    return run_as_rank_zero((sys.executable, *words, "--steps", "1000000"), np=np, ranks_per_node=8, seconds=SECONDS)


def _of(record: RankZero) -> dict[str, Any]:
    return {
        "step ms": 1e3 * record.compute_s,
        "made up ms": 1e3 * record.fill_s,
        "GiB": record.memory_bytes / 2**30,
        "collectives": len(record.messages),
        "recorded step longer %": 100 * (record.recorded_step_s / record.compute_s - 1),
    }


def _against(record: RankZero, truth: list[tuple[float, float]]) -> dict[str, Any]:
    """Its errors against the median step, if there is one, and the usual peak of real launches."""
    steps_ms, peaks_gib = zip(*truth, strict=True)
    step_ms, usual_gib = median(steps_ms), min(peaks_gib)
    found: dict[str, Any] = {}
    if step_ms:
        found |= {"real ms": step_ms, "error %": 100 * (1e3 * record.compute_s / step_ms - 1)}
    error = 100 * (record.memory_bytes / 2**30 / usual_gib - 1)
    return found | {"real GiB": usual_gib, "at most": max(peaks_gib), "memory error %": error}


if __name__ == "__main__":
    print_table(rank_zero_gpu(*sys.argv[1:]))
