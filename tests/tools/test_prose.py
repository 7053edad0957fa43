"""What the prose of a notebook or a page quotes is what one types, or what its cells show.

It quotes what it speaks of: in a code span, or in bold as the head of a column. After "no" it says
that something is not shown: that is not looked up.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from gpumagic.errors import SpecError
from gpumagic.magics.magic_class import MAGICS, grammar_of
from gpumagic.selection.spec import parse
from tests.support.newest import IS_NEWEST
from tests.tools.demo.runner import VIRTUAL_NOTE, notebooks
from tests.tools.docs.pages import cells, has_cells, pages, shown

#: Of other programs and libraries, and of IPython.
NAMES_ELSEWHERE = {"nvidia-smi", "nccl", "notebook_launcher", "Out", "_", "utility", "fail_above"}
_QUOTE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*")
_DENIED = re.compile(r"\b(?:no|not|without)\s+(?:`[^`]+`|\*\*[^*]+\*\*)", re.IGNORECASE)


def is_typed(quote: str, source: str) -> bool:
    """Whether one types this, in a notebook or in a shell."""
    if quote in NAMES_ELSEWHERE or quote in source or quote.startswith(("%", "-", ".", "$")):
        return True
    if re.fullmatch(r"[A-Z]+(_[A-Z]+)+(=.*)?|(pip|make|jupyter) .*", quote):
        return True
    return is_code(quote) or any(is_argument(quote, magic) for magic in MAGICS)


def is_code(quote: str) -> bool:
    """Whether it is Python: a call, an assignment, or a name that a library has."""
    library, *names = re.sub(r"\(.*", "", quote).split(".")
    if library in ("torch", "numpy", "gpumagic") and names:
        found = importlib.import_module(library)
        for name in names:
            found = getattr(found, name)
        return True
    try:
        (node,) = ast.parse(quote).body
    except (SyntaxError, ValueError):
        return False
    return isinstance(node, ast.Assign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def is_argument(quote: str, magic: str) -> bool:
    """Whether it is a verb, with or without its arguments, or a choice of GPUs."""
    verb, *_ = quote.split()
    if magic == "gpu":
        try:
            return bool(parse(quote))
        except SpecError:
            pass
    return verb in grammar_of(magic).forms


def read(path: Path) -> tuple[str, str, str]:
    """The prose of a notebook or a page, what its cells hold, and what they show."""
    if path.suffix == ".ipynb":
        import nbformat

        book = nbformat.read(path, as_version=4).cells
        prose = [cell.source for cell in book if cell.cell_type == "markdown"]
        code = [(cell.source, shown(cell)) for cell in book if cell.cell_type == "code"]
    else:
        found, rest = cells(path)
        prose = [*(cell.before for cell in found), rest]
        code = [(cell.source, cell.output) for cell in found]
    text = re.sub(r"^```.*?^```$", "", "\n\n".join(prose), flags=re.MULTILINE | re.DOTALL)
    return text, "\n".join(source for source, _ in code), "\n".join(each for _, each in code)


def says(output: str, quote: str) -> bool:
    """Whether this is shown, as whole words."""
    words = re.escape(" ".join(quote.split()))
    return re.search(rf"(?<![\w.]){words}(?!\w)", " ".join(output.split())) is not None


@pytest.mark.skipif(not IS_NEWEST, reason="the pages name what newer versions of torch have")
@pytest.mark.parametrize(
    "path",
    [*notebooks(), *(page for page in pages() if has_cells(page))],
    ids=lambda path: path.stem,
)
def test_what_prose_quotes_is_typed_or_shown(path: Path) -> None:
    prose, source, output = read(path)
    prose = prose.replace(VIRTUAL_NOTE, "")
    quotes = [code or bold for code, bold in _QUOTE.findall(_DENIED.sub("", prose))]
    unknown = [each for each in quotes if not (is_typed(each, source) or says(output, each))]
    assert not unknown
