"""What the agent sees of real training scripts."""

import sys
import textwrap

import pytest

from scalescope.jobs.collect import split_into_phases
from scalescope.jobs.plan import AGENT_HOOK
from scalescope.records.job import Ending
from watched import BEGINNING, samples


def test_every_optimizer_step_is_a_step(forked) -> None:
    log = forked(BEGINNING + "for _ in range(7): step()")
    assert len(log.steps()) == 7
    assert samples(log) == {4}
    assert log.ended > log.steps()[-1].end


def test_accumulated_batches_make_one_step(forked) -> None:
    script = (
        BEGINNING
        + """
for k in range(12):
    model(torch.randn(5, 8)).square().mean().backward()
    if k % 4 == 3:
        optimizer.step(); optimizer.zero_grad()
"""
    )
    log = forked(script)
    assert len(log.steps()) == 3
    assert samples(log) == {20}


def test_optimizers_that_take_turns_make_one_step(forked) -> None:
    script = (
        BEGINNING
        + """
other = torch.nn.Linear(8, 1)
second = torch.optim.Adam(other.parameters())
for _ in range(6):
    step()
    second.zero_grad(); other(torch.randn(4, 8)).square().mean().backward(); second.step()
"""
    )
    log = forked(script)
    assert log.events == 12
    assert len(log.steps()) == 6


def test_an_optimizer_inside_an_optimizer_makes_one_step(forked) -> None:
    script = (
        BEGINNING
        + """
class Outer(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
optimizer = Outer(model.parameters(), lr=0.01)
for _ in range(5): step()
"""
    )
    assert len(forked(script).steps()) == 5


@pytest.mark.parametrize("before_s", [0.0, 0.05], ids=["after a short step", "after a long step"])
def test_a_step_that_raises_is_left_out_and_the_others_counted(forked, before_s: float) -> None:
    script = (
        BEGINNING
        + """
class Picky(torch.optim.SGD):
    def step(self, closure=None):
        if k == 0: time.sleep(PAUSE)
        if k == 1: raise ValueError("planted")
        return super().step(closure)
optimizer = Picky(model.parameters(), lr=0.01)
for k in range(60):
    try: step()
    except ValueError: pass
"""
    )
    assert len(forked(script.replace("PAUSE", str(before_s))).steps()) == 59


def test_evaluation_and_pauses_are_no_part_of_a_step(watch) -> None:
    script = (
        BEGINNING
        + """
from torch.utils.data import DataLoader, TensorDataset
train = DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=4)
test = DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4)
for epoch in range(3):
    model.train()
    for (x,) in train:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
        time.sleep(0.002)
    model.eval()
    with torch.no_grad():
        for (x,) in test:
            model(x); time.sleep(0.1)
    torch.save(model.state_dict(), "checkpoint.pt"); time.sleep(0.15)
"""
    )
    log = watch(script).log
    steps = log.steps()
    assert len(steps) == 24
    assert samples(log) == {4}
    assert (len(log.evaluations), len(log.saves)) == (3, 3)
    for start, end in [*log.evaluations, *log.saves]:
        assert all(step.end <= start or end <= step.start for step in steps)
    launch = Ending(started_ns=log.began, ended_ns=log.ended, started_wall_ns=0)  # on this host that one is not needed
    phases = split_into_phases(log, steps, 1, launch)
    assert phases["evaluation"] >= 0.6
    assert phases["pause"] >= 0.3  # the third pause ends the script
    assert phases["teardown"] >= 0.15
    assert sum(phases.values()) == pytest.approx((log.ended - log.began) * 1e-9)


def test_a_layer_in_eval_mode_is_no_evaluation(forked) -> None:
    script = (
        BEGINNING
        + """
for _ in range(5):
    model[0].eval(); step()
"""
    )
    log = forked(script)
    assert log.evaluations == []
    assert len(log.steps()) == 5


def test_a_frozen_teacher_is_no_evaluation_and_not_the_model(forked) -> None:
    script = (
        BEGINNING
        + """
teacher = torch.nn.Linear(8, 1).eval()
for _ in range(5):
    x = torch.randn(4, 8)
    with torch.no_grad(): wanted = teacher(x)
    optimizer.zero_grad(); (model(x) - wanted).square().mean().backward(); optimizer.step()
"""
    )
    log = forked(script)
    assert log.evaluations == []
    assert len(log.steps()) == 5
    assert samples(log) == {4}


def test_workers_of_a_loader_are_no_ranks(watch) -> None:
    script = (
        BEGINNING
        + """
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        data = TensorDataset(torch.randn(8, 8))
        for (x,) in DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=method):
            optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
    )
    log = watch(script).log
    assert len(log.steps()) == 8
    assert samples(log) == {2}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_that_a_script_starts_itself_are_ranks(watch, forked, method: str) -> None:
    script = f"""
    import atexit, os, torch, torch.distributed as dist, torch.multiprocessing as mp
    def train(rank):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        meeting = "file://" + os.path.abspath("meeting")
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.randn(3, 8)).sum().backward(); optimizer.step()
        dist.barrier(); dist.destroy_process_group()
        if "{method}" == "spawn":  # torch's gloo threads abort now and then after this
            atexit._run_exitfuncs(); os._exit(0)
    if __name__ == "__main__":
        mp.start_processes(train, nprocs=2, start_method="{method}")
    """
    logs = forked.ranks(script) if method == "fork" else watch(script).logs
    assert [(log.rank, log.world_size, log.engine, len(log.steps())) for log in logs] == [
        (0, 2, "ddp", 4),
        (1, 2, "ddp", 4),
    ]
    assert all(log.inits for log in logs)


def test_a_process_that_never_trains_writes_nothing(watch) -> None:
    assert watch("import torch, torch.distributed.run").logs == []


def test_steps_end_all_at_the_same_one_with_everything_closed(watch) -> None:
    script = (
        BEGINNING
        + """
try:
    while True: step()
finally:
    print("finally")
"""
    )
    watched = watch(script, SCALESCOPE_STEPS="9")
    assert len(watched.log.steps()) == 9
    assert watched.stdout == "finally\n"


def test_a_model_without_a_module_still_steps(forked) -> None:
    script = """
    import torch
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad(); (weight - 1).square().sum().backward(); optimizer.step()
    """
    steps = forked(script).steps()
    assert len(steps) == 4
    assert steps[0].samples == 0


def test_imports_are_timed_and_tracebacks_unchanged(watch) -> None:
    script = (
        BEGINNING
        + """
import traceback
try: import json.no_such
except ImportError: traceback.print_exc()
step()
import no_such_module_at_all
"""
    )
    with_agent = watch(script, code=1)
    assert with_agent.log.import_ns > 100_000_000
    assert with_agent.stderr.count("Traceback") == 2
    assert with_agent.stderr == watch(script, code=1, agent=False).stderr


def test_a_second_sitecustomize_still_runs(watch, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    script = tmp_path / "inner.py"
    script.write_text(textwrap.dedent(BEGINNING + "step()"))
    command = f'PYTHONPATH="{AGENT_HOOK}:{tmp_path}" exec {sys.executable} {script}'
    watched = watch("", "sh", "-c", command)
    assert watched.stdout == "the other one\n"
    assert len(watched.log.steps()) == 1


def test_a_step_that_makes_an_optimizers_state_before_a_checkpoint_is_loaded_is_none(forked) -> None:
    """Counted, it would be the first step of a training whose model nobody has seen."""
    script = (
        BEGINNING
        + """
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
optimizer = torch.optim.Adam(model.parameters())
state = get_optimizer_state_dict(model, optimizer)
set_optimizer_state_dict(model, optimizer, state)
for _ in range(3): step()
get_optimizer_state_dict(model, optimizer)
step()
"""
    )
    log = forked(script)
    assert len(log.steps()) == 4
    assert samples(log) == {4}
