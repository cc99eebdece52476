"""Whatever goes wrong in the agent, the training goes on and the reason is said once."""

import os
import shutil
import sys
import textwrap
from pathlib import Path

from scalescope.jobs.plan import AGENT_HOOK
from watched import BEGINNING


def test_a_torch_without_the_hooks_is_imported_and_not_watched(watch, tmp_path: Path) -> None:
    for name in ("torch", "torch/optim", "torch/nn", "torch/nn/modules", "torch/utils", "torch/utils/data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "torch/optim/optimizer.py").write_text("class Optimizer: pass")
    (tmp_path / "torch/nn/modules/module.py").write_text("class Module: pass")
    (tmp_path / "torch/utils/data/dataloader.py").write_text("class DataLoader: pass")
    script = """
import torch.optim.optimizer, torch.nn.modules.module, torch.utils.data.dataloader
print("trained with", torch.__file__)
"""
    watched = watch(script)
    assert watched.stdout == f"trained with {tmp_path / 'torch/__init__.py'}\n"
    lines = watched.stderr.splitlines()
    names = ("torch.optim.optimizer", "torch.nn.modules.module", "torch.utils.data.dataloader")
    assert [line.split(":")[1] for line in lines] == [f" {name} is not watched" for name in names]


def test_another_sitecustomize_runs_once_and_starts_no_second_agent(watch, tmp_path: Path) -> None:
    """Here it runs all others, and a copy of ours is among them."""
    copy = shutil.copytree(AGENT_HOOK.parent, tmp_path / "copy" / "agent")
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text(
        textwrap.dedent("""
        import os, runpy, sys
        print("the other one")
        for folder in os.environ["PYTHONPATH"].split(os.pathsep):
            if folder != os.path.dirname(__file__):
                runpy.run_path(os.path.join(folder, "sitecustomize.py"))
        mark = "attribute"
        """)
    )
    script = tmp_path / "inner.py"
    script.write_text(
        textwrap.dedent(BEGINNING) + "for _ in range(3): step()\nimport sitecustomize; print(sitecustomize.mark)"
    )
    ours, theirs = [str(AGENT_HOOK), str(copy / "hook")], [str(own)]
    for folders in (ours + theirs, theirs + ours):
        path = os.pathsep.join(folders)
        watched = watch("", "sh", "-c", f'PYTHONPATH="{path}" exec {sys.executable} {script}')
        assert watched.stdout == "the other one\nattribute\n"
        assert watched.stderr == ""
        assert [len(log.steps()) for log in watched.logs] == [3] * len(watched.logs)
    assert len(watched.logs) == 2  # one per launch


def test_a_worker_whose_dataset_trains_is_left_alone(forked) -> None:
    script = (
        BEGINNING
        + """
from torch.utils.data import DataLoader, Dataset
class Trained(Dataset):
    def __init__(self): self.model = torch.nn.Linear(8, 8); self.optimizer = torch.optim.SGD(self.model.parameters())
    def __len__(self): return 8
    def __getitem__(self, at):
        self.model(torch.randn(1, 8)).sum().backward(); self.optimizer.step()
        assert not torch.optim.optimizer._global_optimizer_post_hooks
        return torch.randn(8)
for x in DataLoader(Trained(), batch_size=2, num_workers=2):
    optimizer.zero_grad(); model(x).square().mean().backward(); optimizer.step()
"""
    )
    (log,) = forked.ranks(script.replace("torch.optim.optimizer._", "sys.modules['torch.optim.optimizer']._"))
    assert len(log.steps()) == 4
    assert forked.stderr == ""


def test_a_transformation_is_not_the_model(forked) -> None:
    script = (
        BEGINNING
        + """
class Noise(torch.nn.Module):
    def forward(self, x): return x + torch.randn_like(x)
noise = torch.nn.Sequential(Noise(), Noise())
for _ in range(4):
    noise(torch.randn(32, 8)); step()
"""
    )
    assert [step.samples for step in forked(script).steps()] == [4] * 4


def test_a_full_disk_ends_the_record_and_not_the_training(watch) -> None:
    script = (
        BEGINNING
        + """
import gc, resource
for _ in range(3): step()
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
for k in range(300):
    step()
    if k % 50 == 0: model.eval(); model.train()
kept = [vars(each) for each in gc.get_objects() if type(each).__name__ in ("Recorder", "Marks", "StepClock")]
print(sorted(sum(map(len, filter(bool, each.values()))) for lines in kept for each in [
    {name: value for name, value in lines.items() if name in ("_pending", "_lines", "_times")}]))
print("trained")
"""
    )
    watched = watch(script, SCALESCOPE_TRACE="400:2:2")
    kept, trained = watched.stdout.splitlines()
    assert max(map(int, kept.strip("[]").split(","))) < 5
    assert trained == "trained"
    for what in ("record", "marks"):
        assert watched.stderr.count(f"scalescope: cannot write this rank's {what}: File too large") == 1
    assert 3 <= len(watched.log.steps()) < 303
