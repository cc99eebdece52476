"""What docs/guides/tune.md promises: a tuned training ends with the parameters of the plain run."""

import json

from controlled import BEGINNING, Ranks, sample

TRAININGS = (
    BEGINNING
    + """
import copy
from scalescope.agent.search_client import SearchClient
from scalescope.engines.ddp_training_live import DdpTraining
class Search:
    def __init__(self, directives): self.directives, self.told = list(directives), []
    def ask(self): return self.directives.pop(0)
    def tell(self, line): self.told.append(line)
class Training:
    def __init__(self):
        torch.manual_seed(0)
        layers = [layer for _ in range(6) for layer in (torch.nn.Linear(24, 24), torch.nn.Tanh())]
        self.plain = torch.nn.Sequential(*layers)
        self.model = torch.nn.parallel.DistributedDataParallel(self.plain)
        self.parameters = list(self.plain.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.01)
        self.prepare()
    def prepare(self): pass
    def zero(self): self.optimizer.zero_grad()
    def before(self): pass
    def after(self): pass
    def state(self): return self.parameters
    def train(self, directives):
        client = SearchClient(Search(directives), DdpTraining(self.model)) if directives else None
        if client: client.attach()
        data = torch.Generator().manual_seed(rank)
        for _ in range(45):
            self.zero()
            self.model(torch.randn(4, 24, generator=data)).square().mean().backward()
            self.before(); self.optimizer.step(); self.after()
        if client:
            client.close("never"); self.told = client._controller.told
        return hashlib.sha1(b"".join(each.detach().numpy().tobytes() for each in self.state())).hexdigest()
class FlatBuffer(Training):
    def prepare(self):
        self.flat, at = torch.zeros(sum(each.numel() for each in self.parameters)), 0
        for each in self.parameters:
            each.grad = self.flat[at : at + each.numel()].view_as(each); at += each.numel()
    def zero(self): self.flat.zero_()
    def before(self): self.flat.mul_(min(1.0, 0.1 / float(self.flat.norm())))
class Detached(Training):
    def zero(self):
        for each in self.parameters:
            if each.grad is not None: each.grad.detach_(); each.grad.zero_()
class Clipped(Training):
    def before(self): torch.nn.utils.clip_grad_norm_(self.parameters, 0.1)
class Averaged(Training):
    def prepare(self):
        self.average, self.copy = torch.optim.swa_utils.AveragedModel(self.model), copy.deepcopy(self.plain)
    def after(self):
        self.average.update_parameters(self.model)
        for mean, each in zip(self.copy.parameters(), self.parameters): mean.data.lerp_(each.data, 0.1)
    def state(self): return [*self.parameters, *self.average.module.parameters(), *self.copy.parameters()]
class Hooked(Training):
    def prepare(self):
        self.seen = torch.zeros(1)
        for each in self.parameters:
            each.register_hook(lambda gradient: gradient * 1.5)
            each.register_post_accumulate_grad_hook(self.clamp)
    def clamp(self, parameter):
        self.seen.add_(parameter.grad.clamp_(-0.01, 0.01).sum())
    def state(self): return [*self.parameters, self.seen]
found = {}
for kind in (Training, FlatBuffer, Detached, Clipped, Averaged, Hooked):
    directives = json.loads(os.environ["DIRECTIVES"])
    if kind is Detached:  # in buckets gradients cannot be detached in place: why this is searched on request only
        directives = [each for each in directives if "gradient_as_bucket_view" not in each.get("values", {})]
    tuned = kind()
    same = tuned.train(directives) == kind().train([])
    found[kind.__name__] = {"same": same, "told": tuned.told, "cap": tuned.model.bucket_bytes_cap}
note("found", json.dumps(found))
"""
)
VIEW = {"bucket_cap_mb": 0.002, "gradient_as_bucket_view": True}


def test_a_tuned_training_ends_with_the_parameters_of_the_plain_run(ranks: Ranks) -> None:
    directives = [
        {"id": 0, "kind": "survey", "steps": 2},
        sample(1, {"bucket_cap_mb": 0.002}, 3),
        sample(2, VIEW, 3),
        sample(3, {}, 3),
        sample(4, {"first_bucket_mb": 0.001}, 3),
        {"id": 5, "kind": "free", "values": {"bucket_cap_mb": 0.004}},
    ]
    ranks.run(TRAININGS, [], SCALESCOPE_TUNE="", DIRECTIVES=json.dumps(directives))
    found = json.loads(ranks.noted("found"))
    assert {name: each["same"] for name, each in found.items()} == dict.fromkeys(found, True)
    assert json.loads(ranks.noted("found", 1)).keys() == found.keys()
    assert {each["cap"] for each in found.values()} == {int(0.004 * 2**20)}
    for name, each in found.items():
        samples = [line for line in each["told"] if line["kind"] == "sample"]
        failed = [line["id"] for line in samples if line["problem"]]
        assert failed == ([2] if name == "FlatBuffer" else []), samples
        held = {key: line["fixed"].get("gradient_as_bucket_view", "") for key, line in _by_id(each["told"]).items()}
        if name == "FlatBuffer":
            assert "views of a buffer" in held["hello"]
            assert "views of a buffer" in held[2]
        else:
            assert set(held.values()) == {""}


def _by_id(told: list[dict]) -> dict:
    return {line.get("id", line["kind"]): line for line in told if "fixed" in line}
