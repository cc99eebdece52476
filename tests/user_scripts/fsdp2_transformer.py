"""A transformer made on the meta device, sharded layer by layer and prefetched, as torch's examples do."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from common import STEPS
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

TOKENS, LENGTH, WIDTH, LAYERS = 128, 8, 32, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.output = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        features = self.embedding(tokens)
        for layer in self.layers:
            features = layer(features)
        return self.output(features)


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
with torch.device("meta"):
    model = Model()
options = {
    "mesh": init_device_mesh("cpu", (size,)),
    "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
}
for layer in model.layers:
    fully_shard(layer, **options)
fully_shard(model, **options)
layers = list(model.layers)
for number, layer in enumerate(layers):
    layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 3])
    layer.set_modules_to_backward_prefetch(layers[max(number - 2, 0) : number][::-1])
model.to_empty(device="cpu")
torch.manual_seed(0)
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02)

optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.Generator().manual_seed(rank)
for _ in range(STEPS):
    model.unshard()
    tokens = torch.randint(TOKENS, (4, LENGTH + 1), generator=data)
    scores = model(tokens[:, :-1]).float()
    nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
whole = {name: values.full_tensor() for name, values in model.state_dict().items()}
torch.save(whole, Path(sys.argv[1]) / f"rank{rank}.pt")
dist.destroy_process_group()
