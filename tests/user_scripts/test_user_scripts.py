"""Scripts as people write and start them end under measure, explain and tune with the parameters of a plain run."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import needs
from command_line import CommandLine
from scalescope.engines.base import SHARDING
from scalescope.jobs.hosts import free_port

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
VERBS = {
    "measure": ("--launches", "1", "--timeout", "60s"),
    "explain": (),
    "tune": ("--warmup-samples", "1", "--steps-per-sample", "4", "--max-samples", "3", "--timeout", "60s"),
}
THREADS = ("--threads-per-rank", "1")  # the number of threads decides in which order sums are made
LIMIT_S = 200
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}
STEPS = 50
"""Of each rank of a script that starts its ranks itself."""

Digests = dict[str, str]
"""Of the parameters, per file; every rank of a script writes one, of an example only the first."""


class Case(NamedTuple):
    """A script and its arguments, in which OUT is the folder for the parameters."""

    script: Path
    arguments: str = "OUT"
    libraries: tuple[str, ...] = ("torch",)
    engine: str = ""
    """Named where it is not guessed: slow_training.py can do both."""
    np: int = 2
    starts_ranks: bool = False
    starter: str = ""
    """The words before the script, if not those of Python; PORT is a free one, as two tests run at a time."""
    launcher: str = ""
    """Named where torchrun would start what can start its ranks itself."""
    sharded: bool = False
    """By FSDP2, as measure and explain are to see."""
    tunes: bool = True
    """Whether tune searches; otherwise it says why not, and the training goes on to its end all the same."""

    @property
    def name(self) -> str:
        options = self.arguments.removeprefix("OUT").strip() if self.script.parent == HERE else ""
        launcher = f"--launcher {self.launcher} --" if self.launcher else ""
        script = f"{self.script.parent.name}/{self.script.name}"
        return " ".join(word for word in (launcher, self.starter, script, options) if word)

    def command(self, out: Path) -> list[str]:
        starter = self.starter.replace("PORT", str(free_port())).split() or [sys.executable]
        return [*starter, str(self.script), *self.arguments.replace("OUT", str(out)).split()]


TRAINING = "--epochs 2 --batch-size 8 --save OUT/rank0.pt"
HF = ("transformers", "accelerate")
FABRIC = "fabric run --accelerator=cpu --devices=2 --strategy=ddp --main-port PORT"
ACCELERATE = "accelerate launch --multi_gpu --num_processes 2 --main_process_port PORT"  # the script wants no GPU
CASES = (
    Case(EXAMPLES / "train_ddp.py", f"{TRAINING} --samples 400"),
    Case(EXAMPLES / "slow_training.py", "--epochs 2 --steps 25 --save OUT/rank0.pt", engine="ddp"),
    Case(EXAMPLES / "train_single.py", f"{TRAINING} --samples 200", np=1, tunes=False),
    Case(EXAMPLES / "train_horovod.py", f"{TRAINING} --samples 400", libraries=("horovod",), engine="horovod"),
    Case(HERE / "lightning_trainer.py", libraries=("lightning",)),
    Case(HERE / "lightning_trainer.py", libraries=("lightning",), starts_ranks=True, launcher="own"),
    Case(HERE / "fabric_loop.py", libraries=("lightning",), starts_ranks=True, starter=FABRIC),
    Case(HERE / "accelerate_loop.py", libraries=("accelerate",), starts_ranks=True, starter=ACCELERATE),
    Case(HERE / "hf_trainer.py", libraries=HF, tunes=False),
    Case(HERE / "hf_trainer.py", "OUT --ddp_find_unused_parameters False", libraries=HF),
    Case(HERE / "ignite_trainer.py", libraries=("pytorch-ignite",)),
    Case(HERE / "ignite_trainer.py", "OUT 2", libraries=("pytorch-ignite",), starts_ranks=True),
    Case(HERE / "lbfgs.py"),
    Case(HERE / "gan.py", tunes=False),
    Case(HERE / "grad_scaler.py"),
    Case(HERE / "flat_buffer.py"),
    Case(HERE / "linear_probe.py"),
    Case(HERE / "uneven_join.py", tunes=False),
    Case(HERE / "replicated.py", tunes=False),
    Case(HERE / "compiled_ddp.py", tunes=False),
    Case(HERE / "lightning_fsdp2.py", libraries=("lightning",), sharded=True, tunes=False),
    Case(HERE / "hf_fsdp2.py", libraries=HF, sharded=True, tunes=False),
    Case(HERE / "fsdp2_transformer.py", sharded=True, tunes=False),
    Case(HERE / "fsdp2.py", sharded=True, tunes=False),
    Case(HERE / "fsdp2.py", "OUT mixed", sharded=True, tunes=False),
    Case(HERE / "fsdp2.py", "OUT accumulate", sharded=True, tunes=False),
    Case(HERE / "fsdp2.py", "OUT checkpoint", sharded=True, tunes=False),
    Case(HERE / "fsdp2.py", "OUT offload", sharded=True, tunes=False),
    Case(HERE / "fsdp2.py", "OUT mixed accumulate checkpoint offload", sharded=True, tunes=False),
)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Digests]:
    """What a script ends with when it is started without scalescope, once for all verbs."""
    known: dict[Case, Digests] = {}

    def run(case: Case) -> Digests:
        if case not in known:
            out = tmp_path_factory.mktemp("plain")
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.np), "--no-python"]
            if case.engine == "horovod":
                launcher = ["-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2"]
            words = [sys.executable, *launcher, *case.command(out)]
            code, said = finish(case.command(out) if case.starts_ranks else words, out)
            assert code == 0, said
            known[case] = digests(out)
            assert known[case], said
        return known[case]

    return run


@pytest.mark.launches
@pytest.mark.user_scripts
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_a_script_ends_with_the_parameters_of_its_plain_run(
    case: Case, verb: str, plain: Callable[[Case], Digests], tmp_path: Path, record_property: Callable[..., None]
) -> None:
    needs.installed(*case.libraries)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in case.libraries)
    record_property("script", (case.name, versions, verb))
    expected = plain(case)
    scalescope = CommandLine(tmp_path)
    engine = ("--engine", case.engine) if case.engine else ()
    launcher = ("--launcher", case.launcher) if case.launcher else ()
    np = "2" if verb == "tune" else str(case.np)  # which refuses one process before it starts anything
    words = scalescope.words(
        verb, *VERBS[verb], *engine, *launcher, *THREADS, "--np", np, "-o", "out", "--", *case.command(tmp_path)
    )
    code, said = finish(words, tmp_path)
    refused = verb == "tune" and not case.tunes
    assert code == (2 if refused else 0), said
    assert digests(tmp_path) == expected, said
    assert scalescope.processes() == []
    if verb == "measure" and case.starts_ranks:
        assert measured(tmp_path / "out") == [("ddp", case.np, STEPS)]
        assert "torch.distributed.run" not in next((tmp_path / "out").glob("launches/*/command.txt")).read_text()
    why = said.rpartition("not tuned: ")[2].replace(";", ":").partition(":")[0]
    told = f"; not tuned: {why}" if refused else ""
    if case.sharded and verb == "measure":
        assert {engine for engine, *_ in measured(tmp_path / "out")} == {"fsdp2"}
    if case.sharded and verb == "explain":
        gathers, reductions = sharding_seen(tmp_path / "out")
        told = f"; a step has {gathers} all-gathers and {reductions} reduce-scatters"
    record_property("outcome", f"equal{told}")


@pytest.mark.launches
@pytest.mark.user_scripts
@pytest.mark.timeout(3 * LIMIT_S)
def test_accelerate_starts_ranks_on_cores_through_mpirun(tmp_path: Path) -> None:
    needs.installed("accelerate")
    needs.openmpi()
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    script = (str(HERE / "accelerate_loop.py"), str(tmp_path))
    port = ("--main_process_port", str(free_port()))
    accelerate = ("accelerate", "launch", "--cpu", "--num_processes", "{np}", *port)
    measure = CommandLine(tmp_path).words("measure", *VERBS["measure"], "--np", "1,2", "-o", "out", "--")
    code, said = finish([*measure, *accelerate, "--mpirun_hostfile", "hosts", *script], tmp_path)
    assert code == 0, said
    assert measured(tmp_path / "out") == [("none", 1, 2 * STEPS), ("ddp", 2, STEPS)]
    measure = CommandLine(tmp_path).words("measure", *VERBS["measure"], "--np", "2", "-o", "one", "--")
    code, said = finish([*measure, *accelerate, *script], tmp_path)  # which starts one process, whatever it is told
    assert code == 1
    assert "--np 2 was asked for and the command started 1 rank: put {np} where" in said


def measured(folder: Path) -> list[tuple[str, int, int]]:
    """The engine that was seen, ranks and steps of each, at every point."""
    runs = json.loads((folder / "measurement.json").read_text())["runs"]
    assert all(rank["steps"] == run["steps"] for run in runs for rank in run["ranks"])
    return sorted(((run["engine_seen"], len(run["ranks"]), run["steps"]) for run in runs), key=lambda run: run[1])


def sharding_seen(folder: Path) -> tuple[int, int]:
    """All-gathers and reduce-scatters of a step, as far as their pass and modules are known."""
    (found,) = (json.loads(path.read_text()) for path in folder.rglob("explanation.json"))
    assert found["engine"] == "fsdp2"
    counts = []
    for operation in SHARDING:
        rows = [each for each in found["exchanges"] if each["operation"] == operation and each["phase"]]
        assert all(len(each["module_exposed_s"]) == each["modules"] > 0 for each in rows)
        counts.append(round(sum(each["count"] for each in rows)))
    gathers, reductions = counts
    assert gathers >= reductions > 0
    return gathers, reductions


def finish(words: list[str], folder: Path) -> tuple[int, str]:
    """The exit code of a command and what it printed; what hangs is told to end, as a user would."""
    environment = {**os.environ, **ENVIRONMENT}
    with (folder / "printed.txt").open("w+") as printed:
        running = subprocess.Popen(words, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT)
        try:
            running.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGTERM)
            running.wait(30)
        finally:
            running.kill()
        return running.returncode, (folder / "printed.txt").read_text(errors="replace")


def digests(folder: Path) -> Digests:
    """Of what the ranks saved; parameters that are no numbers any more are equal to nothing."""
    found = {}
    for path in sorted(folder.glob("rank*.pt")):
        state = torch.load(path)
        assert all(values.isfinite().all() for values in state.values()), f"{path.name} holds NaN or infinity"
        text = b"".join(name.encode() + values.numpy().tobytes() for name, values in state.items())
        found[path.name] = hashlib.sha256(text).hexdigest()
    return found
