"""The agent changes nothing: parameters, checkpoints, copies; and what it wrote survives a kill."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from environments import empty_environment
from scalescope.jobs.rank_log import read_rank_logs
from watched import BEGINNING, END_OF_TWO, TWO_RANKS, Forked, samples

TRAINING = """
import hashlib, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
layers = torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)
model = torch.nn.Sequential(*layers)
if RANKS == 2: model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
data = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4, shuffle=True)
for epoch in range(3):
    model.train()
    for (x,) in data:
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    model.eval()
    with torch.no_grad(): model(torch.randn(4, 8))
state = model.state_dict()
digest = hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state)))
print(digest.hexdigest(), flush=True)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_final_parameters_are_bit_identical_with_and_without(forked: Forked, plain: Forked, ranks: int) -> None:
    script = TRAINING.replace("RANKS", str(ranks))
    if ranks == 2:
        script = TWO_RANKS + script + END_OF_TWO
    logs = forked.ranks(script)
    assert [len(log.steps()) for log in logs] == [48] * ranks
    assert plain.ranks(script) == []
    printed = [re.findall("[0-9a-f]{64}", each.stdout) for each in (forked, plain)]
    assert [len(digests) for digests in printed] == [ranks, ranks]
    assert len(set(printed[0] + printed[1])) == 1


def test_copies_and_checkpoints_of_a_watched_model_are_free_of_the_agent(forked) -> None:
    script = (
        BEGINNING
        + """
import copy
step(); step()
average = copy.deepcopy(model)
for _ in range(3): average(torch.randn(64, 8))
step()
torch.save(model, "whole.pt")
"""
    )
    log = forked(script)
    assert len(log.steps()) == 3
    assert samples(log) == {4}
    assert b"scalescope_agent" not in (forked.folder / "whole.pt").read_bytes()
    loaded = torch.load(forked.folder / "whole.pt", weights_only=False)  # here, where there is no agent
    assert loaded(torch.ones(1, 8)).shape == (1, 1)


def test_a_kill_loses_no_finished_step(forked) -> None:
    script = (
        BEGINNING
        + f"""
for k in range(20):
    step(); time.sleep(0.03)
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    )
    log = forked(script, code=-signal.SIGKILL)
    assert len(log.steps()) == 20
    assert log.ended == 0


def test_a_record_cut_anywhere_is_read_as_far_as_it_goes(forked, tmp_path: Path) -> None:
    log = forked(BEGINNING + "for _ in range(3): step()")
    path = tmp_path / "agent-cut.jsonl"
    (written,) = forked.folder.glob(f"agent-*-{log.pid}.jsonl")
    whole = written.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        (log,) = read_rank_logs(path.parent)
        complete = [json.loads(line) for line in whole.splitlines()[: whole[:cut].count(b"\n")]]
        assert log.events == sum(len(line.get("ends", [1])) for line in complete if line["kind"] in ("step", "steps"))


@pytest.mark.parametrize("kind", ["shell wrapper around python -m", "no scalescope"])
def test_it_works_however_python_is_started(watch, tmp_path: Path, kind: str) -> None:
    script = BEGINNING + "for _ in range(3): step()\nprint('scalescope' in sys.modules)"
    if kind == "no scalescope":
        watched = watch(script, str(empty_environment(tmp_path / "env")), "SCRIPT")
    else:
        wrapper = tmp_path / "run.sh"
        wrapper.write_text('#!/bin/sh\necho begin\n"$PYTHON" -m script\n')
        wrapper.chmod(0o755)
        watched = watch(script, str(wrapper), PYTHON=sys.executable)
    assert len(watched.log.steps()) == 3
    assert watched.stdout.splitlines()[-1] == "False"
