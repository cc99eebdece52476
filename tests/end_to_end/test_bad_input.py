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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measure"], "name one thing to measure"),
        (["measure", "resnet19"], "resnet18"),
        (["measure", "no_such_file.py:Net"], "no_such_file.py"),
        (["measure", "net.py:Net", "--input", "8"], "--model-arg width="),
        (["measure", "net.py:Net", "--model-arg", "width=4", "--input", "9"], "--input"),
        (["measure", "net.py:Net", "--model-arg", "width=4"], "--input"),
        (["measure", "net.py:Not", "--input", "8"], "Net"),
        (["measure", "gpt", "--input", "float32:16"], "int64"),
        (["measure", "mlp", "--np", "64"], "--oversubscribe"),
        (["measure", "mlp", "--np", "zero"], "--np"),
        (["measure", "mlp", "--batch", "0"], "--batch"),
        (["measure", "mlp", "--engine", "dpp"], "did you mean ddp"),
        (["measure", "mlp", "--engine", "none"], "--engine takes ddp, horovod"),
        (["measure", "mlp", "--launcher", "toruchrun"], "did you mean torchrun"),
        (["measure", "mlp", "--launcher", "own"], "after --"),
        (["measure", "mlp", "--knob", "bucket=3"], "bucket_cap_mb"),
        (["measure", "mlp", "--knob", "bucket_cap_mb=-3"], "from 0.001 to 4096 MiB"),
        (["measure", "mlp", "--hosts", "a,b"], "a:2,b:2"),
        (["measure", "mlp", "--env", "A"], "NAME=VALUE"),
        (["measure", "mlp", "--scaling", "strong", "--np", "2", "--batch", "31"], "cannot be shared by 2 processes"),
        (["measure", "mlp", "--device", "tpu"], "cpu, cuda or auto"),
        (["measure", "mlp", "--timeout", "soon"], "10m"),
        (["measure", "mlp", "--steps", "0"], "--steps"),
        (["measure", "mlp", "--no-such-option"], "--no-such-option"),
        (["mesure", "mlp"], "mesure"),
        (["measure", "--pattern", "(", "--", "true"], "regular expression"),
        (["measure", "--pattern", "(?P<speed>x)", "--", "true"], "(?P<step_s>...)"),
        (["measure", "--np", "1", "--", "no_such_program_at_all"], "no program 'no_such_program_at_all'"),
        (["measure", "--np", "1", "--", sys.executable, "x.py", "{batch}"], "--batch"),
        (["measure", "--np", "2", "--", sys.executable, "-u", "nosuch.py"], "no file 'nosuch.py'"),
        (["explain", "--np", "2", "--", sys.executable, "nosuch.py", "net.py"], "no file 'nosuch.py'"),
        (["tune", "--np", "2", "--", sys.executable, "no/such.py"], "no file 'no/such.py'"),
        (["study", "--np", "2", "--", "env", "A=1", sys.executable, "nosuch"], "no file 'nosuch'"),
        (["measure", "mlp", "--loss", "nope", "-o", "new/out"], "no loss 'nope'"),
        (["estimate", "mlp", "--loss", "nope", "--np", "1,2", "--quiet"], "no loss 'nope'"),
        (["measure", "--np", "1", "--launcher", "mpirun", "--", "srun", "x"], "leave --launcher mpirun out"),
        (["measure", "--np", "1", "--model-arg", "a=1", "--", "true"], "let your command do it"),
        (["measure", "mlp", "--launcher", "mpirun", "--engine", "horovod", "--knob", "controller=gloo"], "horovodrun"),
        (["measure", "mlp", "--launcher", "horovodrun", "--hosts", "a:1,b:1", "--ssh", "rsh"], "with ssh alone"),
        (["measure", "--"], "no command after --"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_one_line_and_exit_code_2_and_nothing_on_disk(scalescope, monkeypatch, words: list[str], says: str) -> None:
    (scalescope.folder / "net.py").write_text(MODEL)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    check_refusal(scalescope.in_this_process(*words, code=2), says)
    assert {path.name for path in scalescope.folder.iterdir()} - {"__pycache__"} == {"net.py"}
    sys.modules.pop("net", None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["measure"], "name one thing to measure"),
        (["mesure", "mlp"], "mesure"),
        (["measure", "--"], "no command after --"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_same_from_a_process_of_its_own(scalescope, words: list[str], says: str) -> None:
    check_refusal(scalescope(*words, code=2), says)


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


def test_a_model_that_is_never_built_is_given_up(scalescope) -> None:
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
