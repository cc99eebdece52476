"""How many samples a step is made of, however a script fetches and steps."""

from statistics import fmean

import pytest

from watched import BEGINNING, samples

LOADER = """
from torch.utils.data import DataLoader, TensorDataset
def batches(size, count): return DataLoader(TensorDataset(torch.randn(size * count, 8)), batch_size=size)
"""


@pytest.mark.parametrize("evaluates", [False, True], ids=["training only", "evaluation after every pass"])
def test_batches_of_an_accumulation_that_are_all_fetched_first(forked, evaluates: bool) -> None:
    evaluation = """
    model.eval()
    for (x,) in batches(5, 3): model(x)
    model.train()
"""
    script = """
loader = batches(2, 24)
for epoch in range(3):
    fetching = iter(loader)
    for _ in range(6):
        fetched = [next(fetching)[0] for _ in range(4)]
        for x in fetched: model(x).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()
"""
    log = forked(BEGINNING + LOADER + script + (evaluation if evaluates else ""))
    assert len(log.steps()) == 18
    assert samples(log) == {8}


def test_batches_that_a_script_skips_are_no_samples(forked) -> None:
    script = """
for epoch in range(2):
    for at, (x,) in enumerate(batches(4, 12)):
        if epoch == 0 and at < 5: continue
        optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
    log = forked(BEGINNING + LOADER + script)
    assert len(log.steps()) == 19
    assert samples(log) == {4}


def test_evaluation_within_a_pass_adds_no_samples(forked) -> None:
    script = """
test = batches(7, 2)
for at, (x,) in enumerate(batches(4, 12)):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
    if at % 3 == 2:
        model.eval()
        for (y,) in test: model(y)
        model.train()
"""
    log = forked(BEGINNING + LOADER + script)
    assert len(log.steps()) == 12
    assert len(log.evaluations) == 4
    assert samples(log) == {4}


@pytest.mark.parametrize(("passes", "length"), [(12, 10), (1, 3000)], ids=["short passes", "one long pass"])
def test_a_gradient_scaler_that_skips_steps_loses_no_samples(forked, passes: int, length: int) -> None:
    script = f"""
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
for epoch in range({passes}):
    for at, (x,) in enumerate(batches(16, {length})):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if at % 5 == 4: loss = loss * float("inf")
        scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
"""
    log = forked(BEGINNING + LOADER + script)
    assert len(log.steps()) == passes * length * 4 / 5
    counted = [step.samples for step in log.steps() if step.samples]
    # 19.5 where steps are so short that only the first 32 are looked at: the first skipped batch comes after four steps
    assert fmean(counted) == pytest.approx(20, abs=0.6)


@pytest.mark.parametrize("has_loader", [False, True], ids=["call", "loader"])
def test_batches_that_are_like_a_dict(forked, has_loader: bool) -> None:
    script = """
from collections import UserDict
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, batch): return self.inner(batch["x"])
outer = Model()
def made(rows): return UserDict(name=["a"] * 6, x=torch.stack([row[0] for row in rows]))
data = TensorDataset(torch.randn(18, 8))
rows = [data[at] for at in range(6)]
loader = DataLoader(data, batch_size=6, collate_fn=made) if HAS_LOADER else [made(rows) for _ in range(3)]
for batch in loader:
    optimizer.zero_grad(); outer(batch).square().mean().backward(); optimizer.step()
"""
    assert samples(forked(BEGINNING + LOADER + script.replace("HAS_LOADER", str(has_loader)))) == {6}
