"""What a resumed measurement compares with where it was begun."""

import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from scalescope.errors import UsageError
from scalescope.measurement.fingerprint import check_same_machine, fingerprint_here, runs_elsewhere
from scalescope.records.job import Host
from scalescope.records.request import Fingerprint

THERE = Fingerprint(host="a", cpu="Xeon", cores=8, gpus=("H200", "H200"), python="3.11.2", torch="2.6.0+cu126")


def compare(elsewhere: bool = False, **changes: object) -> tuple[str, ...]:
    return check_same_machine(THERE, msgspec.structs.replace(THERE, **changes), Path("out"), elsewhere=elsewhere)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cpu": "EPYC"}, "CPU EPYC instead of Xeon"),
        ({"cores": 4}, "cores 4 instead of 8"),
        ({"gpus": ("H200",)}, "GPUs H200 instead of H200, H200"),
        ({"gpus": ()}, "GPUs none instead of H200, H200"),
        ({"python": "3.12.0"}, "Python 3.12.0 instead of 3.11.2"),
        ({"torch": "2.7.0"}, "torch 2.7.0 instead of 2.6.0+cu126"),
        ({"host": "b", "cores": 4, "torch": ""}, "cores 4 instead of 8; torch none instead of 2.6.0+cu126"),
    ],
)
def test_a_difference_is_refused_in_one_line(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as told:
        compare(**changes)
    assert said in str(told.value)
    assert "resume it with the original setup on a, or start a new run without --resume" in str(told.value)
    assert "\n" not in str(told.value)


def test_another_name_of_the_same_hardware_is_noted() -> None:
    assert compare() == ()
    (note,) = compare(host="b")
    assert "started on host a and resumed on b, with the same CPU" in note


def test_of_a_machine_that_only_launches_the_software_counts() -> None:
    (note,) = compare(elsewhere=True, host="b", cpu="EPYC", cores=4, gpus=())
    assert "from which it is launched" in note
    with pytest.raises(UsageError, match=r"torch 2\.7"):
        compare(elsewhere=True, torch="2.7.0")
    assert runs_elsewhere((Host("a", 2),), "", ())
    assert runs_elsewhere((), "", ("/usr/bin/srun", "-n", "2", "python"))
    assert not runs_elsewhere((), "torchrun", ("python", "srun"))


@pytest.mark.launches
def test_the_python_of_the_command_is_asked() -> None:
    own, other = fingerprint_here((), "cpu"), fingerprint_here((sys._base_executable, "train.py"), "cpu")
    assert own == fingerprint_here((sys.executable, "train.py"), "cpu")
    assert own.python == platform.python_version()
    assert own.torch
    assert other.python
    assert msgspec.structs.replace(other, python=own.python, torch=own.torch) == own


@pytest.mark.launches
def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from scalescope.measurement.fingerprint import fingerprint_here; fingerprint_here((), 'auto')\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
