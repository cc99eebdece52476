"""Which steps count where ranks train together: alike on all ranks, whatever one of them trains on its own."""

import sys
from pathlib import Path

import pytest

import needs
from controlled import BEGINNING, Ranks, one, sample
from scalescope.jobs.rank_log import read_rank_logs

PROBE = """
probe = torch.nn.Linear(64, 1)
probing = torch.optim.Adam(probe.parameters())
def evaluated():
    if rank == 0:
        for _ in range(3):
            probing.zero_grad(); probe(torch.randn(7, 64)).square().mean().backward(); probing.step()
"""
LOOP = """
for _ in range(12):
    evaluated()
    for model, optimizer in trained:
        optimizer.zero_grad(); model(torch.randn(4, 64)).square().mean().backward(); optimizer.step()
"""
MAKES = {
    "optimizer after the wrapper": """
model = wrapped()
trained = [(model, torch.optim.SGD(model.parameters(), lr=0.01))]
""",
    "optimizer before the wrapper": """
optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
trained = [(wrapped(), optimizer)]
""",
    "compiled wrapper": """
model = torch.compile(wrapped(), backend="eager")
trained = [(model, torch.optim.SGD(model.parameters(), lr=0.01))]
""",
    "two models that take turns": """
models = [wrapped(), torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))]
trained = [(model, torch.optim.SGD(model.parameters(), lr=0.01)) for model in models]
""",
    "parameters that are parts of one buffer": """
flat = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(plain.parameters()).detach())
at = 0
for each in plain.parameters():
    each.data, at = flat.data[at : at + each.numel()].view_as(each), at + each.numel()
trained = [(wrapped(), torch.optim.SGD([flat], lr=0.01))]
""",
    "copies of the parameters, and no probe": """
copies = [each.detach().double().requires_grad_() for each in plain.parameters()]
trained = [(wrapped(), torch.optim.SGD(copies, lr=0.01))]
evaluated = lambda: None
""",
}


@pytest.mark.parametrize("kind", list(MAKES))
def test_ranks_count_the_same_steps(ranks: Ranks, kind: str) -> None:
    ranks.run(BEGINNING + PROBE + MAKES[kind] + LOOP, [], SCALESCOPE_TUNE="")
    logs = read_rank_logs(ranks.folder)[:2]  # other tests have more ranks
    assert [(log.rank, log.engine, len(log.steps())) for log in logs] == [(0, "ddp", 12), (1, "ddp", 12)]
    assert {step.samples for log in logs for step in log.steps()} <= {0, 4}


def test_an_extra_optimizer_on_rank_0_does_not_disturb_a_search(ranks: Ranks) -> None:
    script = BEGINNING + PROBE + "evaluated()\n" + MAKES["optimizer after the wrapper"] + LOOP.replace("12", "40")
    lines = ranks.run(script, [sample(0, {"bucket_cap_mb": 0.1}), {"id": 1, "kind": "free", "values": {}}])
    assert len(one(lines, "sample")["step_ns"]) == 6
    assert one(lines, "applied")["id"] == 1


STOPPED = """
import atexit, os, torch
ENGINE
model = torch.nn.Linear(64, 1)
probe = torch.nn.Linear(64, 1)
probing = torch.optim.Adam(probe.parameters())
def evaluated():
    if rank == 0:
        for _ in range(3): probe(torch.randn(7, 64)).square().mean().backward(); probing.step()
evaluated()
WRAPPED
try:
    while True:
        evaluated()
        optimizer.zero_grad(); model(torch.randn(4, 64)).square().mean().backward(); optimizer.step()
except SystemExit:
    print("stopped", flush=True)
    atexit._run_exitfuncs(); os._exit(0)  # torch's gloo threads abort now and then after this
"""
ENGINES = {
    "ddp": (
        """
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=2)
""",
        """
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
""",
        ("sh", "-c", f"RANK=1 {sys.executable} SCRIPT & RANK=0 {sys.executable} SCRIPT && wait $!"),
    ),
    "horovod": (
        """
import horovod.torch as hvd
hvd.init()
rank = hvd.rank()
""",
        """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
""",
        (str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", "2", sys.executable, "SCRIPT"),
    ),
}


@pytest.mark.parametrize("engine", list(ENGINES))
def test_ranks_stop_after_the_same_step(watch, tmp_path: Path, engine: str) -> None:
    if engine == "horovod":
        needs.horovod()
    begin, wrap, words = ENGINES[engine]
    env = {"GLOO_SOCKET_IFNAME": "lo", "MEETING": str(tmp_path / "meeting"), "SCALESCOPE_STEPS": "9"}
    watched = watch(STOPPED.replace("ENGINE", begin).replace("WRAPPED", wrap), *words, **env)
    assert watched.stdout.count("stopped") == 2
    alone = 3  # steps of rank 0 before anything is wrapped
    assert [log.events for log in watched.logs] == [alone + 9, 9]
