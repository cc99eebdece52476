"""The site of `make docs`: the Markdown of this folder, and the API from docstrings."""

import sys
from pathlib import Path

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
autodoc_preserve_defaults = True
html_copy_source = False
html_show_copyright = False
