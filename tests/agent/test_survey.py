"""What a survey finds in real trainings, with a search and in a launch of its own."""

import json
from itertools import pairwise
from pathlib import Path

import needs
from controlled import BEGINNING, Ranks, one
from scalescope.agent.survey import probe_sizes

SLOW = (
    BEGINNING
    + """
class Wait(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        time.sleep(0.02); return x.clone()
    @staticmethod
    def backward(context, gradient):
        time.sleep(0.04); return gradient
class Slow(torch.nn.Module):
    def forward(self, x): return Wait.apply(x)
plain = torch.nn.Sequential(torch.nn.Linear(64, 600), Slow(), torch.nn.BatchNorm1d(600), torch.nn.Linear(600, 600))
model = wrapped()
class Pausing(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.03)
        return super().step(closure)
optimizer = Pausing(plain.parameters(), lr=0.01)
for _ in range(9):
    optimizer.zero_grad(); model(torch.randn(4, 64)).square().mean().backward(); optimizer.step()
hooks = [len(each._post_accumulate_grad_hooks or ()) for each in plain.parameters()]
note("hooks", sum(hooks) + (torch.autograd.backward.__module__ != "torch.autograd"))
"""
)


def check(survey: dict) -> None:
    names = [name.removeprefix("module.") for name, _, _ in survey["gradients"]]
    assert names[-2:] in (["0.weight", "0.bias"], ["0.bias", "0.weight"])  # the first layer's come last
    assert {name: size for name, size, _ in survey["gradients"]}["module.3.weight"] == 600 * 600 * 4
    assert all(size == 4 for _, _, size in survey["gradients"])
    assert survey["ready_s"] == sorted(survey["ready_s"])
    assert survey["ready_s"][-1] >= 0.04 > survey["ready_s"][0]
    assert survey["backward_s"] >= 0.04
    assert survey["forward_s"] >= 0.02
    assert survey["optimizer_s"] >= 0.03
    parts_s = survey["forward_s"] + survey["backward_s"] + survey["optimizer_s"]
    assert survey["step_s"] >= 0.9 * parts_s  # medians of the parts may add up to more than the median of the sums
    assert survey["samples"] == 4
    assert survey["buffers_bytes"] == [2400, 2400, 8]
    assert (survey["engine"], survey["backend"], survey["threads"]) == ("ddp", "gloo", 1)
    assert survey["device"] == "cpu"
    assert survey["copy_s_per_byte"] > 0


def test_a_survey_holds_ready_times_of_gradients_and_costs_of_messages(ranks: Ranks) -> None:
    names = 'import os; os.environ["SCALESCOPE_HOST"] = "ab"[int(os.environ["RANK"]) // 2]\n'
    directives = [{"id": 0, "kind": "survey", "steps": 3}, {"id": 1, "kind": "free", "values": {}}]
    survey = one(ranks.run(names + SLOW, directives, ranks=4), "survey")["survey"]
    check(survey)
    assert (survey["hosts"], survey["ranks_per_host"]) == (2, 2)
    total = sum(size for _, size, _ in survey["gradients"])
    for kind in ("flat", "hierarchical"):
        costs = survey["costs"][kind]
        assert [size for size, _, _ in costs] == probe_sizes(total)
        assert all(seconds > 0 and processor >= 0 for _, seconds, processor in costs)
    assert ranks.noted("hooks") == "0"


def test_a_launch_without_a_search_leaves_its_survey_in_a_file(ranks: Ranks) -> None:
    ranks.run(SLOW, [], SCALESCOPE_TUNE="", SCALESCOPE_SURVEY="4")
    survey = json.loads((ranks.folder / "survey.json").read_text())
    check(survey)
    assert "hierarchical" not in survey["costs"]
    assert ranks.noted("hooks") == "0"


def test_messages_grow_up_to_all_gradients_together() -> None:
    assert probe_sizes(6_800_000) == [4096, 16384, 65536, 262144, 1048576, 4194304, 6_800_000]
    assert probe_sizes(10) == [8]
    sizes = probe_sizes(2**31)
    assert len(sizes) == 8
    assert all(larger > smaller for smaller, larger in pairwise(sizes))


def test_the_wait_inside_horovods_optimizer_is_no_optimizer(watch, tmp_path: Path) -> None:
    needs.horovod()
    script = """
import time, torch, horovod.torch as hvd
hvd.init()
model = torch.nn.Sequential(torch.nn.Linear(64, 600), torch.nn.Linear(600, 600))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
synchronize = type(optimizer).synchronize
def waiting(self):
    time.sleep(0.1)
    return synchronize(self)
type(optimizer).synchronize = waiting
for _ in range(9):
    optimizer.zero_grad(); model(torch.randn(4, 64)).square().mean().backward(); optimizer.step()
"""
    watch(script, SCALESCOPE_SURVEY="4")
    survey = json.loads((tmp_path / "records" / "survey.json").read_text())
    assert (survey["engine"], survey["hosts"], survey["ranks_per_host"], survey["samples"]) == ("horovod", 1, 1, 4)
    assert len(survey["gradients"]) == 4
    assert survey["optimizer_s"] < 0.1 < survey["step_s"]
