"""torch.compile and TorchScript make the same of a model as without the agent."""

import json

import pytest

from watched import BEGINNING, Forked

TRAINING = """
import json, torch.distributed as dist
from torch._dynamo.utils import counters
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
options = {"backend": "eager", "fullgraph": True}
def wrapped(inner):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting-{os.getpid()}", rank=0, world_size=1)
    return torch.nn.parallel.DistributedDataParallel(inner)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x): return self.inner(x).relu()
net = Net()
def train(run, steps=6):
    for k in range(steps):
        optimizer.zero_grad(); run(torch.randn(4, 8)).square().mean().backward(); optimizer.step()
        if k == 3: torch.save(net.state_dict(), f"model-{os.getpid()}.pt")
MAKE
with open("counted.json", "w") as file:
    json.dump({name: counters[name] for name in ("frames", "graph_break", "stats")}, file)
"""
MAKES = {
    "model": "train(torch.compile(net, **options))",
    "model in a wrapper": "train(wrapped(torch.compile(net, **options)))",
    "model that compiles itself": "net.compile(**options); train(net)",
    "function": "train(torch.compile(lambda x: net(x), **options))",
    "evaluation first": """
run = torch.compile(net, **options)
net.eval(); run(torch.randn(4, 8)); net.train()
train(run)
net.eval(); run(torch.randn(4, 8)); net.train()
train(run, 2)
""",
    "after eager steps": "train(net); train(torch.compile(net, **options))",
}
BROKEN = {
    "wrapper": "train(torch.compile(wrapped(net), backend='eager'))",
    "step": """
@torch.compile(backend="eager")
def step_of(x):
    optimizer.zero_grad(); loss = net(x).square().mean(); loss.backward(); optimizer.step()
    return loss
train(net, 2)
for _ in range(6): step_of(torch.randn(4, 8))
""",
}
"""What torch compiles in pieces, without the agent, too."""
SEEN = {"after eager steps": 12, "evaluation first": 8, "step": 2}
"""Steps; an optimizer's step that is compiled itself is not seen."""


def compiled(forked: Forked, plain: Forked, kind: str, make: str) -> list[dict]:
    """What dynamo counted with the agent and without it."""
    script = BEGINNING + TRAINING.replace("MAKE", make)
    assert len(forked(script).steps()) == SEEN.get(kind, 6)
    plain.run(script)
    return [json.loads((each.folder / "counted.json").read_text()) for each in (forked, plain)]


@pytest.mark.parametrize("kind", list(MAKES))
def test_a_full_graph_stays_one(forked: Forked, plain: Forked, kind: str) -> None:
    watched, expected = compiled(forked, plain, kind, MAKES[kind])
    assert watched == expected
    assert watched["stats"]["unique_graphs"] == 1
    assert not watched["graph_break"]


@pytest.mark.parametrize("kind", list(BROKEN))
def test_there_are_no_more_graph_breaks_and_frames(forked: Forked, plain: Forked, kind: str) -> None:
    watched, expected = compiled(forked, plain, kind, BROKEN[kind])
    assert watched["graph_break"] == expected["graph_break"]
    assert watched["stats"] == expected["stats"]
    assert 0 < watched["frames"]["total"] <= expected["frames"]["total"]


def test_a_compiled_model_does_not_warn_of_our_hook(forked: Forked) -> None:
    script = """
import warnings
warnings.simplefilter("error")
train = torch.compile(model, backend="eager")
train(torch.randn(4, 8)).sum().backward(); optimizer.step()
"""
    assert len(forked(BEGINNING + script).steps()) == 1


@pytest.mark.parametrize("trace", ["", "2:4:2"], ids=["watched", "traced"])
def test_a_model_can_be_scripted_at_any_time(watch, forked: Forked, trace: str) -> None:
    script = """
for _ in range(3): step()
torch.jit.script(model)
model.eval()
assert not model._forward_pre_hooks and not model._forward_hooks
torch.jit.script(model).save("scripted.pt"); model(torch.randn(4, 8))
model.train()
for _ in range(3): step()
torch.save(model.state_dict(), "model.pt")
torch.jit.script(model)
for _ in range(3): step()
"""
    log = watch(BEGINNING + script, SCALESCOPE_TRACE=trace).log if trace else forked(BEGINNING + script)
    assert len(log.steps()) == 9
    assert len(log.evaluations) == 1
