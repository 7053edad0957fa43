"""What each type of result shows: its text in 80 columns, and its HTML, as files.

``python -m tests.results.golden`` writes them anew. Look at what has changed.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpumagic.results import Result
from gpumagic.results.base import as_html, as_text

FOLDER = Path(__file__).parent


def drawings(result: Result) -> dict[str, str]:
    """The content of the files, by suffix; HTML with a line for each block and each row."""
    html = re.sub(r"(?=<(?:div|table|tr|details|/table|/details))", "\n", as_html(result))
    return {".txt": as_text(result, 80) + "\n", ".html": html.strip() + "\n"}
