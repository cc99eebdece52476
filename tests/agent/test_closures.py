"""What a closure does inside Optimizer.step is forward and backward, in traces and in marks."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from scalescope.agent.marks import Marks
from scalescope.intervals import between, common
from scalescope.traces.kineto.reading import read
from scalescope.traces.marks import read_marks
from watched import BEGINNING, Forked

CLOSURE = """
model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6)))
optimizer = torch.optim.OPTIMIZER
x = torch.randn(1024, 128)
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
for _ in range(9): optimizer.step(closure)
"""
OPTIMIZERS = {
    "Adam": "Adam(model.parameters())",
    "LBFGS": "LBFGS(model.parameters(), max_iter=4, history_size=4)",
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALESCOPE_TRACE", "3:4:2")
        traced = Forked(tmp_path_factory.mktemp("closures"))
    with traced.server:
        yield traced


@pytest.mark.launches
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_a_closure_is_compute_and_not_the_optimizer(traced: Forked, kind: str) -> None:
    assert len(traced(BEGINNING + CLOSURE.replace("OPTIMIZER", OPTIMIZERS[kind])).steps()) == 9
    trace = read(traced.folder / "trace-rank0.json.gz")
    assert len(trace.starts_s) == 4
    assert trace.parts.compute.sum() > trace.parts.optimizer.sum()
    assert np.all(trace.parts.optimizer > 0)
    spans = trace.spans(trace.starts_s[0], trace.ends_s[-1])
    lengths = {kind: sum(s.end_s - s.start_s for s in spans if s.activity == kind) for kind in ("forward", "backward")}
    assert min(lengths.values()) > 0.1 * trace.parts.step.sum()
    marks = read_marks(traced.folder / "marks-rank0.jsonl")
    assert len(marks.forward.starts) >= 9
    assert len(marks.backward.starts) == len(marks.forward.starts)
    for part in (marks.forward, marks.backward):
        assert not len(common(part, marks.optimizer).starts)
    stepping = between(marks.optimizer, marks.starts_s, marks.ends_s)
    assert np.all(stepping > 0)
    assert stepping.sum() < 0.6 * (marks.ends_s - marks.starts_s).sum()


def test_what_lies_between_two_closures_is_the_optimizer_and_the_loss_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls take 1 s each, with 1 s between them: forward from 1 to 2, backward from 3 to 4, and so on."""
    marks = Marks(str(tmp_path))
    marks.open(rank=0, world_size=1, host="a", engine="none", device="cpu")
    seconds = count(1)
    monkeypatch.setattr("scalescope.agent.marks.now", lambda: next(seconds) * 10**9)
    for part in ("forward", "backward") * 2:
        marks.timed(part, lambda: None)()
    marks.optimizer(0, 9 * 10**9)
    marks.step(0, 0, 9 * 10**9, traced=True)
    marks.flush()
    line = json.loads((tmp_path / "marks-rank0.jsonl").read_text().splitlines()[-1])
    assert [[end // 10**9 for end in span] for span in line["optimizer"]] == [[0, 1], [4, 5], [8, 9]]
