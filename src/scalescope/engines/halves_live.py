"""The live halves of all engines, as the agent finds them; each is loaded where it is needed. Standard library only.

A half may have `watch(module, agent)`, which sees what a script does with the engine, and under a search adds a side to
`agent.tuned` with `reset`, `note_root` and what begins the search; `engine_of(model)`, the name of the engine that a
model shows, or empty; `surveyed(model)`, the model that a survey watches and what makes the group of its ranks;
`Tracer`, which captures steps instead of torch's profiler; and `NOT_TUNED`, the sentence of a search that found nothing
to switch.
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
