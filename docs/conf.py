"""Sphinx's configuration of the site. `make site` builds it; see tests/tools/docs/site.py."""

import re
from typing import Any

import gpumagic

project = "gpumagic"
release = version = gpumagic.__version__
copyright = "the gpumagic developers"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_static"]
default_role = "code"

# The notebooks are executed before; see tests/tools/docs/site.py.
nb_execution_mode = "off"
nb_merge_streams = True
# Nothing is loaded from a network: no MathJax, no widgets.
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
myst_enable_extensions: list[str] = []
myst_heading_anchors = 3
suppress_warnings = [
    "myst.header",  # cells of a notebook may begin with a second-level heading
    "misc.highlighting_failure",  # CUDA's messages in tracebacks
]

html_theme = "furo"
html_title = "gpumagic"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "undoc-members": True}


def signature(app: Any, what: str, *rest: Any) -> tuple[str, None] | None:
    """Leave out the signatures of results, which gpumagic makes."""
    return ("", None) if what == "class" else None


def fields(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make fields of the sections ``Args:`` and ``Raises:`` of a docstring."""
    kind, found = "", []
    for line in lines:
        if line in ("Args:", "Raises:"):
            kind = "param" if line == "Args:" else "raises"
        elif kind and line.startswith("    "):
            found.append(re.sub(r"^    ([\w, `]+): ", rf":{kind} \1: ", line))
        else:
            kind = kind if not line else ""
            found.append(line)
    lines[:] = found


def setup(app: Any) -> None:
    """Connect the two functions above."""
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", fields)
