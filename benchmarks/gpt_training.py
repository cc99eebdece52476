"""A small GPT, compiled, on one GPU: short kernels that the host must launch in time. Prints the median step."""

import argparse
import time
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT, VOCABULARY = 256, 50304


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
    """Tokens in, the loss of predicting the next ones out."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        """The mean loss of a batch."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.last(x)).flatten(0, 1), wanted.flatten())


def main() -> None:
    """Train; every micro-batch is read on the host, as training scripts that print their loss do."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--steps", type=int, default=200)
    asked.add_argument("--layers", type=int, default=12)
    asked.add_argument("--width", type=int, default=384)
    asked.add_argument("--batch", type=int, default=4)
    asked.add_argument("--accumulate", type=int, default=4)
    asked.add_argument("--device", default="cuda")
    asked.add_argument("--eager", action="store_true")
    told = asked.parse_args()
    torch.manual_seed(0)
    model: nn.Module = Gpt(told.layers, told.width, 6).to(told.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if not told.eager:
        model = torch.compile(model)  # type: ignore[assignment]
    times = []
    for step in range(told.steps):
        began = time.perf_counter()
        for _ in range(told.accumulate):
            tokens = torch.randint(VOCABULARY, (told.batch, CONTEXT + 1)).to(told.device)
            with torch.autocast(told.device, torch.bfloat16, enabled=told.device == "cuda"):
                loss = model(tokens[:, :-1], tokens[:, 1:]) / told.accumulate
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()
        times.append(time.perf_counter() - began)
    print(f"{told.steps} steps, median of the last half {1e3 * median(times[told.steps // 2 :]):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
