"""How large the source is and how it hangs together.

`make bench SECTION=structure REVISION=COMMIT` shows another state.
"""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "tests" / "data" / "traces" / "horovod" / "gloo_nocache.json.gz"
_LOADED = """
import contextlib, io, sys
sys.argv = ["scalescope", "explain", sys.argv[1], "-o", sys.argv[2], "--json"]
with contextlib.redirect_stdout(io.StringIO()):
    from scalescope.cli import run
    assert run(sys.argv[1:]) == 0
print(sum(name == "scalescope" or name.startswith("scalescope.") for name in sys.modules))
"""


# What has to be opened to add one more of something, seen from one that is there.
_FACTS: dict[str, Callable[[object], bool]] = {
    "name an engine outside its room": lambda value: value in ("ddp", "horovod"),
    "name the knob first_bucket_mb": lambda value: value == "first_bucket_mb",
    "name the finding straggler": lambda value: value == "straggler",
    'hold 0.9, 0.95, a quantile of them, or "95 %"': lambda value: (
        value in (0.9, 0.95, 0.975, 1.645, 1.96) or (isinstance(value, str) and bool(re.search(r"\b9[05] %", value)))
    ),
}


def run() -> list[dict[str, Any]]:
    """One row per figure."""
    revision = os.environ.get("REVISION", "")
    with tempfile.TemporaryDirectory() as folder:
        source = source_at(revision, Path(folder)) if revision else ROOT / "src"
        return [{"figure": name, revision or "here": value} for name, value in figures(source).items()]


def source_at(revision: str, folder: Path) -> Path:
    """The source of another commit, unpacked into the folder."""
    archive = folder / "source.tar"
    subprocess.run(["git", "archive", "-o", archive, revision, "src"], cwd=ROOT, check=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / "src"


def figures(source: Path) -> dict[str, Any]:
    """Sizes, and how many files a reader has to open."""
    files = sorted(source.rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in files}
    lines = {path: len(path.read_text().splitlines()) for path in files}
    importers = Counter(name for path, tree in trees.items() for name in _imported(tree, _module(path, source)))
    functions = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    modules = {_module(path, source): path for path in files}
    return {
        "files": len(files),
        "lines": sum(lines.values()),
        "files of more than 300 lines": sum(count > 300 for count in lines.values()),
        "median lines of a file": median(lines.values()),
        "files with one importer": sum(importers[name] == 1 for name in modules),
        "functions: median, 90th percentile": f"{median(functions):.0f}, {quantiles(functions, n=10)[-1]:.0f} lines",
        "floating strings": sum(_floating(tree) for tree in trees.values()),
        "files that `explain` of a timeline loads": _loaded_by_explain(source),
        **{f"files that {what}": _with_constant(trees, tells) for what, tells in _FACTS.items()},
    }


def _module(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, module: str) -> set[str]:
    """Modules of ours that a file imports; a name in a package may be a module or not."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = ".".join(module.split(".")[: -node.level]) + "." if node.level else ""
            base = (package + (node.module or "")).rstrip(".")
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found - {module}


def _floating(tree: ast.Module) -> int:
    """Strings that stand alone and are no docstring."""
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    return sum(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
        for body in bodies
        for each in body[1:]
    )


def _with_constant(trees: Mapping[Path, ast.Module], tells: Callable[[object], bool]) -> int:
    """Files with a literal of that kind; an engine's own room is not counted."""
    return sum(
        any(isinstance(node, ast.Constant) and tells(node.value) for node in ast.walk(tree))
        for path, tree in trees.items()
        if "engines" not in path.parts or tells("first_bucket_mb")
    )


def _loaded_by_explain(source: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _LOADED, str(TRACE), folder],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=True,
        )
    return int(done.stdout.split()[-1])
