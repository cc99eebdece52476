"""`scalescope doctor` as a user runs it."""

import io
import os
import subprocess
import sys

import msgspec

from scalescope.jobs.machine import check_up
from scalescope.records.machine import Checkup, Machine
from scalescope.records.store import decode
from scalescope.show import document_of, terminal


def test_doctor_shows_a_table_and_the_next_command():
    shown = subprocess.run([sys.executable, "-m", "scalescope", "doctor"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert shown.stderr == ""
    lines = shown.stdout.splitlines()
    for name in ("cores", "memory", "GPUs", "network", "torch", "Horovod", "MPI", "Slurm"):
        assert any(line.startswith(name) for line in lines), name
    assert "is ready to measure" in lines[0]
    assert lines[-1].startswith("Next: scalescope measure cnn --np 1")


def test_doctor_prints_one_json_document(scalescope, this_machine, monkeypatch):
    monkeypatch.setattr("scalescope.jobs.machine.describe_machine", lambda: this_machine)  # as it was found before
    shown = scalescope.in_this_process("doctor", "--json")
    checkup = decode(shown.stdout.encode(), Checkup, "stdout")
    assert checkup.machine.hostname == os.uname().nodename
    assert checkup.machine.cores.logical == os.cpu_count()
    assert checkup.answer in shown.stderr
    assert all(remedy.command in shown.stderr for remedy in checkup.remedies)


def test_doctor_keeps_commands_whole_in_a_narrow_terminal(this_machine, monkeypatch):
    """Without mpirun there is a long command to copy."""
    monkeypatch.setenv("COLUMNS", "40")
    shown = printed(msgspec.structs.replace(this_machine, mpi=None))
    offered = [line.strip() for line in shown.splitlines() if "install" in line]
    assert any("openmpi" in line and len(line) > 36 for line in offered)


def test_doctor_shows_names_of_the_system_without_markup(this_machine):
    shown = printed(msgspec.structs.replace(this_machine, hostname="[bold]box[/bold][/]"))
    assert "machine [bold]box[/bold][/]," in shown
    assert document_of(check_up(msgspec.structs.replace(this_machine, hostname="box"))).answer.startswith(
        "box is ready"
    )


def printed(machine: Machine) -> str:
    page = io.StringIO()
    terminal.show(document_of(check_up(machine)), terminal.open_console(file=page), details=True)
    return page.getvalue()
