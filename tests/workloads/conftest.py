import sys
from collections.abc import Callable
from pathlib import Path

import pytest


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
