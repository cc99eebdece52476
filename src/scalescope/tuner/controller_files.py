"""The search's end of the files through which it controls a running training; agent/search_files.py is the other."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from scalescope.agent.search_files import DIRECTIVE, FORMAT_VERSION, REPORTS
from scalescope.errors import UsageError
from scalescope.records.job import NO_ENGINE
from scalescope.records.store import writing

_LOOK_EVERY_S = 0.003


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Report of rank 0 about the training after its first steps."""

    version: int = 1
    engine: str = NO_ENGINE
    world_size: int = 1
    hosts: tuple[str, ...] = ()  # Of every rank
    backend: str = ""
    device: str = "cpu"
    current: dict[str, Any] = {}
    fixed: dict[str, str] = {}  # Knobs that cannot change here, and why
    refused: str = ""
    nccl_build: bool = False  # Whether this Horovod reduces through NCCL
    most_switches: int | None = None  # None: any number


class SampleReport(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the steps with a setting, as rank 0 saw them."""

    id: int
    step_ns: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    cut: bool = False
    switch_ns: int = 0
    discarded: int = 0
    waited: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    problem: str = ""
    fixed: dict[str, str] = {}  # Knobs that turned out to be unchangeable, and why


class _Line(msgspec.Struct):
    kind: str


class TrainingEnded(Exception):
    """Raised when the ranks are gone and all their reports are read."""


class ControllerFiles:
    """Directives to the ranks and reports from them; `is_over` tells whether the ranks have ended."""

    def __init__(self, folder: Path, is_over: Callable[[], bool]) -> None:
        self._folder, self._is_over = folder, is_over
        self._sent = self._offset = 0
        self._lines: list[bytes] = []
        self.steps = 0  # Of the whole training, known at its end
        self.problem = ""  # Why the ranks ended the search

    def send(self, kind: str, **fields: Any) -> int:
        """The next directive, whole or not at all; its number."""
        number = self._sent
        self._sent += 1
        path = self._folder / DIRECTIVE.format(number)
        partial = path.with_suffix(".partial")
        with writing(path):
            partial.write_text(json.dumps({"id": number, "kind": kind, **fields}))
            partial.replace(path)
        return number

    def hello(self) -> Hello:
        """Wait for the first word of rank 0."""
        hello = msgspec.json.decode(self._wait("hello"), type=Hello)
        if hello.version > FORMAT_VERSION:
            raise UsageError("the ranks run a newer scalescope: upgrade this one")
        return hello

    def survey(self) -> dict[str, Any]:
        """Wait for the survey of rank 0; empty: it found out nothing."""
        found: dict[str, Any] = msgspec.json.decode(self._wait("survey"))["survey"]
        return found

    def sample(self, number: int) -> SampleReport:
        """Wait for the report on a directive."""
        while True:
            report = msgspec.json.decode(self._wait("sample"), type=SampleReport)
            if report.id == number:
                return report

    def _wait(self, kind: str) -> bytes:
        """The next line of this kind; others before it are passed over."""
        while True:
            over = self._is_over()
            with contextlib.suppress(FileNotFoundError), open(self._folder / REPORTS, "rb") as file:
                file.seek(self._offset)
                data = file.read()
                complete = data[: data.rfind(b"\n") + 1]
                self._offset += len(complete)
                self._lines += complete.splitlines()
            while self._lines:
                line = self._lines.pop(0)
                try:
                    found = msgspec.json.decode(line, type=_Line).kind
                except msgspec.DecodeError:  # a torn line of a full disk
                    continue
                if found == kind:
                    return line
                if found == "end":
                    last = msgspec.json.decode(line)
                    self.steps, self.problem = int(last.get("steps", 0)), str(last.get("problem", ""))
                    over = True
            if over:
                raise TrainingEnded
            time.sleep(_LOOK_EVERY_S)
