import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of two tests at a time on two cores would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes models.py into a fresh working directory and gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "models", raising=False)

    def write(source: str) -> str:
        (tmp_path / "models.py").write_text("import torch\nfrom torch import nn\n\n" + source)
        return "models.py"

    yield write
    sys.modules.pop("models", None)
