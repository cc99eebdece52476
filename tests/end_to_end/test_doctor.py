"""`scalescope doctor` as a user runs it."""

import io
import os
import subprocess
import sys

import msgspec

from scalescope.measurement.machine import describe_machine
from scalescope.measurement.remedies import check_up
from scalescope.records.machine import Checkup
from scalescope.records.store import decode
from scalescope.reporting.machine import print_checkup


def doctor(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scalescope", "doctor", *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def test_people_read_a_table_and_the_next_command():
    shown = doctor()
    assert shown.returncode == 0
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    for name in ("cores", "memory", "GPUs", "network", "torch", "Horovod", "MPI", "Slurm"):
        assert any(line.startswith(name) for line in lines), name
    assert "is ready to measure" in lines[-2]
    assert lines[-1].startswith("Next: scalescope measure cnn --np 1")


def test_programs_read_one_document():
    shown = doctor("--json")
    assert shown.returncode == 0
    checkup = decode(shown.stdout.encode(), Checkup, "stdout")
    assert checkup.machine.hostname == os.uname().nodename
    assert checkup.machine.cores.logical == os.cpu_count()
    assert checkup.answer in shown.stderr
    assert all(remedy.command in shown.stderr for remedy in checkup.remedies)


def test_commands_stay_whole_in_a_narrow_terminal(tmp_path):
    """Without mpirun on PATH there is a long command to copy."""
    shown = doctor(COLUMNS="40", PATH=str(tmp_path))
    offered = [line.strip() for line in shown.stdout.splitlines() if "install" in line]
    assert any("openmpi" in line and len(line) > 36 for line in offered)


def test_names_of_the_system_are_not_markup():
    machine = msgspec.structs.replace(describe_machine(), hostname="[bold]box[/bold][/]")
    page = io.StringIO()
    print_checkup(check_up(machine), page)
    assert "machine  [bold]box[/bold][/]," in page.getvalue()
    assert "[bold]box[/bold][/] is ready" in page.getvalue()
