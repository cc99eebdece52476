"""Real profiler traces for tests, as Python objects and as files that were changed."""

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "traces" / "kineto"


def sample(name: str, rank: int = 0) -> Path:
    return FOLDER / name / f"rank{rank}.json.gz"


def loaded(path: Path) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return trace


def written(trace: dict[str, Any], path: Path) -> Path:
    path.write_text(json.dumps(trace))
    return path
