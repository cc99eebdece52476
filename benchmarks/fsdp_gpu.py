"""FSDP2 on one GPU, traced by torch's profiler: with prefetch and without, resharded or kept, accumulated.

One GPU has nobody to gather from (FSDP2 gathers nothing in a group of one), so there are two ways to have collectives:

- `emulated`: rank 0 of 8 whose collectives take the time that a link of so many GB/s needs, on the stream and at the
  moment at which FSDP2 starts them. Compute, streams, events and ranges are real. The kernels that wait are written
  into the trace under the names and arguments that NCCL's have.
- `nccl`: two real ranks of NCCL that share the GPU and talk over loopback; they take turns, so times mean little.

Needs torch only. `python benchmarks/fsdp_gpu.py FOLDER` writes one trace per case (of rank 0) and prints the untraced
step of each.
"""

# mypy: disable-error-code="override,assignment,call-arg,attr-defined"
# The process group below has the names that torch had before 2.13 and has since.
from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

VOCABULARY = 32000
RANGES = {"all_gather": "nccl:_all_gather_base", "reduce_scatter": "nccl:_reduce_scatter_base"}
KERNELS = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
}
CALLS = {"all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base"}
CASES: dict[str, list[str]] = {
    "busy": [],  # The GPU is busy and the host runs ahead of it
    "busy-prefetch": ["--prefetch", "1"],
    "late": ["--batch", "1"],  # The host is behind: what it does not send early is waited for
    "late-prefetch": ["--batch", "1", "--prefetch", "1"],
    "read": ["--read"],  # The host waits for the GPU in every block, as routing and checks for NaN do
    "read-prefetch": ["--read", "--prefetch", "1"],
    "kept": ["--keep"],
    "accumulated": ["--batch", "2", "--accumulate", "4"],
    "accumulated-once": ["--batch", "2", "--accumulate", "4", "--synchronize-last"],
    "nccl": ["--link", "nccl", "--batch", "2"],
}


class Block(nn.Module):
    """Attention and two wide layers, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Batch, position, width in and out."""
        batch, length, width = x.shape
        mixed = self.mixed(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(mixed[0], mixed[1], mixed[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


class Gpt(nn.Module):
    """Tokens in, the loss of predicting the next ones out; about 235 million parameters."""

    def __init__(self, layers: int, width: int, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of a batch."""
        x = self.tokens(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
            if self.reads and not x.detach().flatten()[0].isfinite().item():
                raise ValueError("the activations are not finite")
        scores = functional.linear(self.last(x), self.tokens.weight)
        return functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Done(dist.Work):
    """A collective that ends in the order of its stream."""

    def wait(self, timeout: Any = None) -> bool:
        """Nothing to wait for: who needs it follows the stream."""
        return True

    def is_completed(self) -> bool:
        """It was handed to the stream."""
        return True


class Emulated(dist.ProcessGroup):
    """Rank 0 of a group in which every rank holds what this one holds, and sending takes its time."""

    def __init__(self, rank: int, size: int, gigabytes_per_s: float, device: str) -> None:
        super().__init__(rank, size)
        from torch._C._distributed_c10d import FakeProcessGroup

        # c10d asks the backend of a group for its name and options; nothing is sent through it
        behind = FakeProcessGroup._create_internal(rank, size)
        self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, behind)
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        self._size_, self._bytes_per_s, self._on_gpu = size, gigabytes_per_s * 1e9, device == "cuda"
        self._cycles_per_s = _cycles_per_s() if self._on_gpu else 0.0

    def getBackendName(self) -> str:  # noqa: N802
        """Its own, so that nobody looks for a backend of that kind."""
        return "emulated"

    def _sent(self, kind: str, whole: Tensor) -> None:
        # A rank sends and gets (N - 1) / N of the whole, as a ring does
        seconds = whole.numel() * whole.element_size() * (self._size_ - 1) / self._size_ / self._bytes_per_s
        with torch.profiler.record_function(f"{RANGES[kind]}|{whole.numel()}|{whole.dtype}"):
            if self._on_gpu:
                torch.cuda._sleep(int(seconds * self._cycles_per_s))  # type: ignore[no-untyped-call]
            else:
                time.sleep(seconds)

    def _allgather_base(self, output: Tensor, input_: Tensor, options: Any = None) -> Done:
        self._sent("all_gather", output)
        output.view(self._size_, -1).copy_(input_.reshape(1, -1).expand(self._size_, -1))
        return Done()

    def _reduce_scatter_base(self, output: Tensor, input_: Tensor, options: Any = None) -> Done:
        self._sent("reduce_scatter", input_)
        output.view(-1).copy_(input_.reshape(self._size_, -1)[0])
        return Done()

    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base  # As torch calls them since 2.13

    def allreduce(self, tensors: Any, options: Any = None) -> Done:
        """Leaves everything as it is."""
        return Done()

    broadcast = barrier = allreduce


def _cycles_per_s() -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for cycles in (10_000_000, 100_000_000):  # The first one warms up
        first.record()  # type: ignore[no-untyped-call]
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        last.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return 100_000_000 / (first.elapsed_time(last) * 1e-3)  # type: ignore[no-untyped-call]


def _join(asked: argparse.Namespace) -> None:
    if asked.link == "nccl":
        rank = int(os.environ["RANK"])
        # NCCL refuses two ranks of one host on one GPU; as hosts of their own they talk over the network
        os.environ |= {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
        return

    def group(options: Any, _: Any) -> Emulated:
        return Emulated(options.group_rank, options.group_size, asked.gigabytes, asked.device)

    dist.Backend.register_backend("emulated", group, extended_api=True, devices=[asked.device])
    dist.init_process_group("emulated", rank=0, world_size=asked.ranks, store=dist.HashStore())


def train(asked: argparse.Namespace, path: Path) -> None:
    """Warms up, times some steps and traces three."""
    _join(asked)
    torch.manual_seed(0)
    mesh = init_device_mesh(asked.device, (dist.get_world_size(),))
    model = Gpt(asked.layers, asked.width, asked.read).to(asked.device)
    how: Any = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
    if asked.keep:
        how["reshard_after_forward"] = False
    blocks: Any = list(model.blocks)
    for block in blocks:
        fully_shard(block, **how)
    whole: Any = fully_shard(model, **how)
    if asked.prefetch:
        whole.set_modules_to_forward_prefetch(blocks[: asked.prefetch])
        for at, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[at + 1 : at + 1 + asked.prefetch])
            block.set_modules_to_backward_prefetch(blocks[max(0, at - asked.prefetch) : at][::-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=asked.device == "cuda")
    tokens = torch.randint(VOCABULARY, (asked.batch, asked.length + 1), device=asked.device)

    def step() -> None:
        for micro in range(asked.accumulate):
            if asked.synchronize_last:
                whole.set_requires_gradient_sync(micro == asked.accumulate - 1)
            (model(tokens) / asked.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()

    def finished() -> None:
        if asked.device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    finished()
    took = []
    for _ in range(asked.steps):
        began = time.perf_counter()
        step()
        finished()
        took.append(time.perf_counter() - began)
    began = time.perf_counter()
    for _ in range(asked.steps):
        step()
    finished()
    in_a_row = (time.perf_counter() - began) / asked.steps
    plan = torch.profiler.schedule(wait=0, warmup=2, active=3, repeat=1)
    with torch.profiler.profile(schedule=plan) as profile:
        for _ in range(5):
            step()
            profile.step()
        finished()
    rank = dist.get_rank()
    if rank:
        dist.destroy_process_group()
        return
    plain = path.with_name(f"{path.name}-rank{rank}.json")
    profile.export_chrome_trace(str(plain))
    trace = json.loads(plain.read_text())
    plain.unlink()
    if asked.link == "emulated":
        _named_as_nccl(trace, asked.ranks)
    packed = plain.with_name(f"{plain.name}.gz")
    packed.write_bytes(gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), 9))
    alone, size = 1e3 * median(took), packed.stat().st_size / 1e6
    print(f"{path.name}: {1e3 * in_a_row:.2f} ms a step in a row, {alone:.2f} ms alone; {size:.2f} MB", flush=True)
    dist.destroy_process_group()


def _named_as_nccl(trace: dict[str, Any], ranks: int) -> None:
    """Waiting kernels under NCCL's names, with its arguments; the ranges around them without what they carried."""
    events = trace["traceEvents"]
    ranges = [event for event in events if str(event.get("name", "")).startswith("nccl:")]
    calls = {}
    for event in events:
        number = event.get("args", {}).get("correlation") if "runtime" in str(event.get("cat")) else None
        if number is not None:
            calls[number] = event
    held = {}
    for number, call in calls.items():
        for around in ranges:
            inside = around["ts"] <= call["ts"] <= around["ts"] + around["dur"]
            if around.get("cat") == "user_annotation" and around["tid"] == call["tid"] and inside:
                held[number] = around["name"]
    for event in events:
        if "spin_kernel" in str(event.get("name")) and event["args"].get("correlation") in held:
            name, count, dtype = held[event["args"]["correlation"]].split("|")
            kind = next(kind for kind, range_ in RANGES.items() if range_ == name)
            whole, part = int(count), int(count) // ranks
            sizes = (part, whole) if kind == "all_gather" else (whole, part)
            event["name"] = f"{KERNELS[kind]}(ncclDevKernelArgsStorage<4096ul>)"
            event["args"] |= {
                "Collective name": CALLS[kind],
                "In msg nelems": sizes[0],
                "Out msg nelems": sizes[1],
                "Group size": ranks,
                "dtype": {"torch.bfloat16": "BFloat16", "torch.float32": "Float"}[dtype],
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
            }
    for event in ranges:
        event["name"] = event["name"].split("|")[0]
    trace["distributedInfo"] = {
        "backend": "nccl",
        "rank": 0,
        "world_size": ranks,
        "pg_config": [
            {
                "pg_name": "0",
                "pg_desc": "default_pg",
                "backend_config": "cuda:nccl",
                "pg_size": ranks,
                "ranks": list(range(ranks)),
            }
        ],
    }
    trace["emulated"] = "collectives of rank 0 of several: kernels that wait as long as a link would take"


def main() -> None:
    """Runs one case, or all of them one after the other, each in processes of its own."""
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("folder", type=Path)
    known.add_argument("--case", choices=CASES, help="only this one")
    known.add_argument("--name", help="run here, with the options that follow")
    known.add_argument("--link", choices=("emulated", "nccl"), default="emulated")
    known.add_argument("--ranks", type=int, default=8)
    known.add_argument("--gigabytes", type=float, default=30.0, help="of the emulated link, per second")
    known.add_argument("--prefetch", type=int, default=0, help="modules ahead, in forward and backward")
    known.add_argument("--keep", action="store_true", help="reshard_after_forward=False")
    known.add_argument("--read", action="store_true", help="the host reads a number after every block")
    known.add_argument("--accumulate", type=int, default=1)
    known.add_argument("--synchronize-last", action="store_true", help="set_requires_gradient_sync")
    known.add_argument("--batch", type=int, default=16)
    known.add_argument("--length", type=int, default=1024)
    known.add_argument("--layers", type=int, default=16)
    known.add_argument("--width", type=int, default=1024)
    known.add_argument("--steps", type=int, default=20)
    known.add_argument("--device", default="cuda")
    asked = known.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.name:
        train(asked, asked.folder / asked.name)
        return
    common = sys.argv[2:] if not asked.case else [word for word in sys.argv[2:] if word not in ("--case", asked.case)]
    for name, options in CASES.items():
        if asked.case not in (None, name):
            continue
        start = [sys.executable]
        if "nccl" in options:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words = [*start, __file__, str(asked.folder), "--name", name, *options, *common]
        try:
            done = subprocess.run(words, check=False, timeout=180, capture_output=True, text=True)
            print(done.stdout if done.returncode == 0 else f"{name} failed: {done.stderr[-1500:]}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{name}: not finished after 180 s", flush=True)


if __name__ == "__main__":
    main()
