"""The live halves of all engines, as the agent finds them; each is loaded where it is needed. Standard library only.

The half of an engine that trains a MODEL has

- `start(device, knobs)`: joins the ranks; rank and number of ranks.
- `wrap(model, make_optimizer, knobs, passes)`: the model that exchanges gradients, and its optimizer.
- `agree(value)`: rank 0's number on every rank. `finish()`: leaves.
- `begin_allreduce(tensor, name)`, `is_done(handle)`, `wait(handle)`, `broadcast(tensor, name)`: what a probe times.

For scripts of users it may have

- `watch(module, agent)`: sees what a script does with the engine, and under a search adds a side to `agent.tuned`.
- `engine_of(model)`: the name of the engine that a model shows, or empty.
- `surveyed(model)`: the model that a survey watches, and what makes the group of its ranks.
- `Tracer`: captures steps instead of torch's profiler.
- `NOT_TUNED`: the sentence of a search that found nothing to switch.
"""

from __future__ import annotations

_SHARDED = ("fsdp2", "hsdp", "replicate", "fsdp")
OF_ENGINE = {"ddp": "ddp_live", "horovod": "horovod_live", **dict.fromkeys(_SHARDED, "sharded_live")}
WATCHES = {  # By the module, once imported
    "torch.nn.parallel.distributed": "ddp_live",
    "horovod.torch": "horovod_live",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": "sharded_live",
}
LOOKS_AT_MODELS = ("sharded_live",)
