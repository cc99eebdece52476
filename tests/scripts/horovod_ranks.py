"""A Horovod training, once as it is and once while a search switches its knobs; tests read what it notes.

The search is one of files: its directives come after the plain training, so both run in one launch.
"""

import copy
import hashlib
import json
import os
import tempfile
from pathlib import Path

import horovod.torch as hvd
import torch

FOLDER = Path(os.environ["SCALESCOPE_FOLDER"])
noted = {}
alone = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
hvd.init(process_sets=alone)
rank = hvd.rank()


class Training:
    """With two backward passes per step, metrics, and an asynchronous operation that is open at three steps of four."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
        self.first = copy.deepcopy(self.model.state_dict())
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001)
        named = self.model.named_parameters()
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named, backward_passes_per_step=2)

    def begin(self):
        self.model.load_state_dict(self.first)
        self.optimizer.state.clear()
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.data = torch.Generator().manual_seed(rank)
        self.seen = []
        self.steps = 0

    def step(self):
        self.optimizer.zero_grad()
        for _ in range(2):
            self.model(torch.randn(4, 32, generator=self.data)).square().mean().backward()
        self.optimizer.step()

    def train(self, steps):
        for _ in range(steps):
            if self.steps % 4 == 0:
                self.handle = hvd.allreduce_async(torch.full((3,), float(self.steps + rank)), name="late", op=hvd.Sum)
            self.step()
            if self.steps % 4 == 2:
                self.seen += hvd.synchronize(self.handle).tolist()
            if self.steps % 10 == 9:
                self.seen += hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum).tolist()
                self.seen += [alone[0].process_set_id, alone[rank].size()]
            if self.steps == 30:
                hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
            self.steps += 1

    def sha(self):
        state = [each.detach().numpy().tobytes() for each in self.model.parameters()]
        return hashlib.sha1(b"".join(state) + json.dumps(self.seen).encode()).hexdigest()


def count(what):
    return sum(1 for _ in Path("/proc/self", what).iterdir())


def fail_where_asked():
    """A start with a cycle of 9 ms fails; the second copy after this cannot be made on rank 1."""
    ops, init, make = hvd.mpi_ops, hvd.mpi_ops.init, tempfile.mkstemp
    made = []

    def starting(*arguments, **options):
        if os.environ.get("HOROVOD_CYCLE_TIME") == "9":
            raise ValueError("Horovod could not be started")
        return init(*arguments, **options)

    def making(*arguments, **options):
        made.append(1)
        if len(made) == 2 and rank == 1:
            raise OSError(28, "No space left on device")
        return make(*arguments, **options)

    ops.init, tempfile.mkstemp = starting, making


training = Training()
training.begin()
training.train(int(os.environ["STEPS"]))
noted["plain"] = training.sha()
fail_where_asked()
before = count("fd")
training.begin()
hvd.allreduce(torch.zeros(1), name="ready")
if rank == 0:
    for path in sorted(FOLDER.glob("later-*.json")):
        path.rename(FOLDER / path.name.replace("later", "directive"))
training.train(int(os.environ["STEPS"]))
noted["tuned"] = training.sha()
noted["files"], noted["threads"] = count("fd") - before, count("task")
noted["copies"] = [path.name for path in Path(tempfile.gettempdir()).glob("scalescope-horovod-*")]
if os.environ.get("UNEVEN"):
    for _ in range(3 + 9 * rank):
        training.step()
    hvd.join()
    for _ in range(4):
        training.step()
    noted["together"] = hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, name="together").tolist()
noted["cycle"] = os.environ.get("HOROVOD_CYCLE_TIME", "")
hvd.shutdown()
(FOLDER / f"noted-{rank}.json").write_text(json.dumps(noted))
