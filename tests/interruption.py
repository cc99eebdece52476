"""Ctrl-C at a chosen moment of an estimate."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from command_line import CommandLine


def interrupt(line: CommandLine, words: Sequence[str], file: Path, lines: int, environment: dict[str, str]) -> str:
    """Ctrl-C when a file has so many lines; what was said. Nothing may be left running."""
    running = subprocess.Popen(
        line.words(*words),
        cwd=line.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 180
    while not file.exists() or file.read_bytes().count(b"\n") < lines:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said.strip().splitlines()[-1].startswith("scalescope: interrupted: nothing is left running")
    assert line.processes() == []
    return said
