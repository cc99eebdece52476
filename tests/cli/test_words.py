"""Plain English: phrases that readers stumbled over stay out of help, messages and docstrings."""

import ast
import re
from pathlib import Path

import scalescope

PACKAGE = Path(scalescope.__file__).parent
WORST = {
    r"\bso many\b(?!.* that )": "N, or the number",
    r"\bbeware\b": "Warning",
    r"\bg(o|oes|one|oing) on with\b": "resume, continue",
    r"by itself off": "(default: off)",
    r"sign of life": "progress",
    r"\bcrowns\b": "selects",
    r"owe their lead": "come from",
    r"how manieth": "its index",
    r"(x|times) the default's pace": "faster than the default",
    r"when it pleases": "optional stopping",
    r"who moves the bytes": "communication backend",
    r"how sure it is to be": "Statistics",
    r"worth its devices": "minimum efficiency",
    r"\baudience\b": "progress",
    r"\bsurroundings\b": "environment",
}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def texts(source: str) -> list[tuple[int, str]]:
    """All string constants, docstrings and parts of f-strings included, with their lines."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [(node.lineno, node.value) for node in nodes if isinstance(node.value, str)]


def test_no_text_has_the_worst_phrases() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}, line {line}: '{match[0]}': say {better}"
        for path in SOURCES
        for line, text in texts(path.read_text())
        for phrase, better in WORST.items()
        if (match := re.search(phrase, text, re.IGNORECASE))
    ]
    assert found == []
