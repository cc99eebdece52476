"""Tables and logs written for a test and read at once."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from scalescope.logs.curves import read_logs
from scalescope.logs.tables import read_table
from scalescope.records.scaling import Scaling


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Scaling]:
    def read(text: str | bytes, name: str = "table.csv") -> Scaling:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_table(path)

    return read


@pytest.fixture
def logs(tmp_path: Path) -> Callable[..., Scaling]:
    def read(np: Sequence[int] = (), pattern: str = "", **texts: str) -> Scaling:
        paths = []
        for name, text in texts.items():
            paths.append(tmp_path / f"{name}.log")
            paths[-1].write_bytes(text.encode())
        return read_logs(paths, np, pattern)

    return read
