"""A model sharded by fully_shard: fsdp2.py OUT [mixed] [accumulate] [checkpoint] [offload] [hsdp] [replicate]."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from common import batches, network
from torch.distributed._composable import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

modes = sys.argv[2:]
dist.init_process_group("gloo")
shard, options = fully_shard, {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
if "mixed" in modes:
    options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
if "offload" in modes:
    options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
if "hsdp" in modes:
    options["mesh"] = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copies", "shards"))
if "replicate" in modes:
    from torch.distributed._composable.replicate_with_fsdp import replicate as shard

model = network()
for block in model:
    if isinstance(block, torch.nn.Linear):
        if "checkpoint" in modes:
            checkpoint(block)
        shard(block, **options)
shard(model, **options)
assert isinstance(model, FSDPModule)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for inputs, labels in batches():
    optimizer.zero_grad()
    parts = list(zip(inputs.chunk(2), labels.chunk(2), strict=True)) if "accumulate" in modes else [(inputs, labels)]
    for number, (features, classes) in enumerate(parts, 1):
        model.set_requires_gradient_sync(number == len(parts))
        (cross_entropy(model(features).float(), classes) / len(parts)).backward()
    optimizer.step()
whole = {name: values.full_tensor().cpu() for name, values in model.state_dict().items()}
torch.save(whole, Path(sys.argv[1]) / f"rank{dist.get_rank()}.pt")
dist.destroy_process_group()
