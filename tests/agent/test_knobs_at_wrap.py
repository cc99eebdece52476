"""Knobs from the environment are in force as soon as a script has wrapped its model."""

import json

import pytest

from controlled import BEGINNING, Ranks

WRAPS = (
    BEGINNING
    + """
positional = plain, None, None, 0, True, True, None, 10  # the script's own bucket_cap_mb
model = torch.nn.parallel.DistributedDataParallel(*positional)
optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad(); model(torch.randn(4, 64)).square().mean().backward(); optimizer.step()
sizes = [int(size) for size in model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]
live = sys.modules.get("scalescope_engines.ddp_live")
note("wrapper", json.dumps([model.bucket_bytes_cap, model.gradient_as_bucket_view, model.static_graph, len(sizes)]))
note("sizes", json.dumps(sizes))
note("hierarchical", bool(live) and live.current(model)["hierarchical_allreduce"])
note("sha", sha())
"""
)


def test_without_knobs_the_wrapper_is_the_scripts_own(ranks: Ranks) -> None:
    ranks.run(WRAPS, [], ranks=1, SCALESCOPE_TUNE="")
    assert json.loads(ranks.noted("wrapper")) == [10 * 2**20, False, False, 1]


def test_knobs_go_before_the_scripts_arguments_and_change_no_result(ranks: Ranks) -> None:
    ranks.run(WRAPS, [], SCALESCOPE_TUNE="")
    plain = ranks.noted("sha")
    knobs = {"bucket_cap_mb": 0.1, "first_bucket_mb": 0.02, "gradient_as_bucket_view": True, "static_graph": True}
    ranks.run(WRAPS, [], SCALESCOPE_TUNE="", SCALESCOPE_KNOBS=json.dumps(knobs))
    cap, view, static, _ = json.loads(ranks.noted("wrapper"))
    assert (cap, view, static) == (int(0.1 * 2**20), True, True)
    first, *others = json.loads(ranks.noted("sizes"))
    assert 0.02 * 2**20 <= first < 0.1 * 2**20 <= others[0]
    assert ranks.noted("sha") == ranks.noted("sha", 1) == plain


OWN_HOOK = WRAPS.replace(
    "optimizer =",
    """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
model.register_comm_hook(None, allreduce_hook)
optimizer =""",
)


@pytest.mark.parametrize("script", [WRAPS, OWN_HOOK], ids=["no hook of the script's", "with one"])
def test_a_communication_hook_of_the_script_goes_before_hierarchical_allreduce(ranks: Ranks, script: str) -> None:
    before = len(ranks.errors)
    names = 'import os; os.environ["SCALESCOPE_HOST"] = "ab"[int(os.environ["RANK"]) // 2]\n'
    knobs = json.dumps({"hierarchical_allreduce": True, "bucket_cap_mb": 0.1})
    ranks.run(names + script, [], ranks=4, SCALESCOPE_TUNE="", SCALESCOPE_KNOBS=knobs)
    said = ranks.errors[before:]
    assert ranks.noted("hierarchical") == str(script is WRAPS)
    assert said.count("the script has a communication hook of its own") == (script is OWN_HOOK)
    assert len({ranks.noted("sha", rank) for rank in range(4)}) == 1


def test_knobs_that_cannot_be_set_are_named(ranks: Ranks) -> None:
    before = len(ranks.errors)
    ranks.run(WRAPS, [], ranks=1, SCALESCOPE_TUNE="", SCALESCOPE_KNOBS='{"hierarchical_allreduce": true}')
    assert "hierarchical_allreduce is not used: all ranks are on one host" in ranks.errors[before:]
