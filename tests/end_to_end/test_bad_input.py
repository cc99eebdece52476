"""Bad input gets one clear line that names the next action, and exit code 2."""

import sys

import pytest

MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(8, width)
    def forward(self, x):
        return self.layer(x)
"""


def test_a_process_of_its_own_refuses_alike(scalescope) -> None:
    check_refusal(scalescope("mesure", "mlp", code=2), "mesure")


def check_refusal(done, says: str) -> None:
    assert done.stdout == ""
    assert done.stderr.startswith("scalescope: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert says in done.stderr


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("print('no training here')", "no rank made an optimizer step"),
        ("raise RuntimeError('planted')", "planted"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_a_script_that_cannot_be_measured(scalescope, script: str, says: str) -> None:
    (scalescope.folder / "script.py").write_text(script)
    done = scalescope("measure", "--np", "1", "--launcher", "own", "--", sys.executable, "script.py", code=1)
    assert says in done.stderr
    assert "Traceback" not in done.stderr.splitlines()[0]


def test_a_model_that_is_never_built_times_out(scalescope) -> None:
    (scalescope.folder / "endless.py").write_text("import time\ndef build():\n    time.sleep(600)\n")
    done = scalescope("measure", "endless.py:build", "--input", "8", "--np", "2", "--timeout", "2s", code=1)
    assert done.stderr.startswith("scalescope: the model endless.py:build made no step within 2 s in one process")
    assert len(done.stderr.splitlines()) == 1


def test_processes_that_train_alone_are_refused(scalescope) -> None:
    (scalescope.folder / "alone.py").write_text(
        "import torch\nw = torch.zeros(2, requires_grad=True); o = torch.optim.SGD([w], lr=1)\n"
        "for _ in range(6): w.sum().backward(); o.step()\n"
    )
    done = scalescope("measure", "--np", "2", "--", sys.executable, "alone.py", code=1)
    assert "each trained alone" in done.stderr


def test_programs_that_are_not_there_say_how_to_get_them(scalescope, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(scalescope.folder))
    words = ("measure", "mlp", "--launcher")
    assert "openmpi-bin" in scalescope.in_this_process(*words, "mpirun", code=2).stderr
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    assert "scontrol" in scalescope.in_this_process(*words, "srun", code=2).stderr


def test_a_folder_with_a_measurement_is_not_overwritten(scalescope) -> None:
    (scalescope.folder / "out").mkdir()
    (scalescope.folder / "out" / "measurement.json").write_text("{}")
    assert "already holds a measurement" in scalescope.in_this_process("measure", "mlp", "-o", "out", code=2).stderr
