"""The site of `make docs`: the Markdown of this folder, and the API from docstrings."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

project = "scalescope"
author = "The scalescope authors"
html_title = "scalescope"
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4  # the anchors that GitHub makes
default_role = "code"
highlight_language = "none"  # most blocks are terminal sessions

autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True, "undoc-members": True, "exclude-members": "__new__, __init__"}
autodoc_preserve_defaults = True
html_copy_source = False
html_show_copyright = False


def comment_of_field(_app: Any, what: str, name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """What the source says of a field: the comment behind it, or above it."""
    if what != "attribute":
        return
    path, _, field = name.rpartition(".")
    module, _, owner = path.rpartition(".")
    source = inspect.getsource(getattr(import_module(module), owner))
    found = re.search(rf"((?:^    # .*\n)*)^    {field}: [^\n#]*(?:# (.*))?$", source, flags=re.MULTILINE)
    if found and not lines:
        above = " ".join(line.strip("# ") for line in found[1].splitlines())
        lines[:] = [" ".join(filter(None, (above, found[2])))]
    # Before a colon napoleon would look for a type.
    lines[:] = [re.sub(r"`+([^`]+)`+", r"``\1``", line).replace(": ", "; ") for line in lines]


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", comment_of_field, priority=400)
