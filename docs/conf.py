"""How Sphinx builds the documentation site (``make docs-site``)."""

from __future__ import annotations

import sys
from pathlib import Path

import vdla

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generate import write_pages  # noqa: E402  found in this folder

project = "VDLA"
author = "the VDLA authors"
copyright = "the VDLA authors; Apache License 2.0"
release = version = vdla.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence"]
#: Headings of these levels can be linked to.
myst_heading_anchors = 3
exclude_patterns = ["vdla_isa.h"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
html_theme = "furo"
html_title = f"VDLA {release}"
html_copy_source = False

write_pages(HERE / "_generated")
