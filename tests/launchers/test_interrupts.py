"""Ctrl-C at the worst moment: while a launcher is being forked."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
from scalescope.launchers.base import Command
from scalescope.launchers.processes import carrying, of_launch
from scalescope.launchers.runner import run
from scalescope.records.job import Job
from scalescope.records.job import Knobs

class Watch:
    def tick(self): return 0
    def stalled(self, seconds): return "stalled", ""

job = Job(command=("sleep", "60"), np=1, knobs=Knobs(engine="ddp"), folder=sys.argv[1], launch=sys.argv[1],
          threads_per_rank=1, python=sys.executable)
command = Command(argv=("sleep", "60"), env={"SCALESCOPE_LAUNCH": job.launch})
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    run([command], job, Watch(), timeout_s=8)
    print("lost")
except KeyboardInterrupt:
    print("heard", list(carrying(of_launch(job.launch))))
"""


@pytest.mark.launches
def test_an_interrupt_during_a_fork_is_not_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split("\n")[0] == "heard []", done.stderr
