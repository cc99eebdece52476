"""A GPT on made-up tokens, with DDP or sharded block by block by FSDP2: in bfloat16 over NCCL on GPUs, else over gloo.

torchrun --nproc-per-node 2 examples/train_gpt.py --engine fsdp2
scalescope estimate --np 1..8 --cluster examples/clusters/cpu-4x2.toml -- python examples/train_gpt.py --engine fsdp2
"""

import argparse
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def arguments() -> argparse.Namespace:
    """What is trained; by default a model for two cores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--backend", choices=("nccl", "gloo"), help="default: nccl on GPUs")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a process in a step")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=100)
    return parser.parse_args()


class Gpt(nn.Module):
    """Tokens in, the loss of predicting the next ones out."""

    def __init__(self, asked: argparse.Namespace) -> None:
        super().__init__()
        width = asked.width
        self.tokens, self.places = nn.Embedding(asked.vocabulary, width), nn.Embedding(asked.length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, asked.heads, 4 * width, 0.0, functional.gelu, batch_first=True, norm_first=True
            )
            for _ in range(asked.layers)
        )
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, asked.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of a batch."""
        length, device = tokens.shape[1] - 1, tokens.device
        x = self.tokens(tokens[:, :-1]) + self.places(torch.arange(length, device=device))
        later = nn.Transformer.generate_square_subsequent_mask(length, device=device, dtype=x.dtype)
        for block in self.blocks:
            x = block(x, later, is_causal=True)
        scores = self.head(self.last(x))
        return functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())


def wrapped(model: Any, asked: argparse.Namespace, device: torch.device) -> Any:
    """The model as its engine wants it."""
    if asked.engine == "ddp":
        return DistributedDataParallel(model)
    half = torch.bfloat16 if device.type == "cuda" else None
    options: Any = {
        "mesh": init_device_mesh(device.type, (dist.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=half),
    }
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def main() -> None:
    """Train, and print what a step took."""
    asked = arguments()
    on_gpu = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if on_gpu
        else torch.device("cpu")
    )
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(asked.backend or ("nccl" if on_gpu else "gloo"))
    torch.manual_seed(0)
    with device:
        model = Gpt(asked)
    model = wrapped(model, asked, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    began = time.perf_counter()
    for step in range(asked.steps):
        if step == asked.steps // 2:
            if on_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
        tokens = torch.randint(asked.vocabulary, (asked.batch, asked.length + 1), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu and asked.engine == "ddp"):
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    last = f"loss {loss.item():.2f}"
    step_s = (time.perf_counter() - began) / (asked.steps - asked.steps // 2)
    if dist.get_rank() == 0:
        peak = f", {torch.cuda.max_memory_allocated() / 2**30:.3f} GiB at peak" if on_gpu else ""
        print(f"{asked.engine}, {dist.get_world_size()} ranks: {1e3 * step_s:.2f} ms a step{peak}, {last}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
