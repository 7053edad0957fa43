"""The notebooks as they are committed: with what their cells show, as a code host shows them.

``make notebooks`` executes them on virtual GPUs and writes them. The tests execute them on the same
GPUs, and compare the words. A cell whose words differ from run to run has the tag ``varies``.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections import Counter
from contextlib import suppress
from html import unescape
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # nbformat takes a second of CPU time to import
    import nbformat

VARIES = "varies"
#: What a cell begins with that shows something of ours.
OURS = re.compile(r"%%?(gpu|cudatime|gpumem)\b(?!.* -q)")
#: Lines that depend on how fast the machine is, or on its processors: why a time has ``≤``, what
#: limits a cell, the CPU threads, a progress bar of another library.
_OPTIONAL = re.compile(
    r"^the GPU may have waited for Python|^the first timed run since CUDA"
    r"|^GPU-bound|^host-bound|^measuring the lines took|^line \d+ (takes|waited)|^CPU: |%\|"
)
#: What a time with ``≤`` is at least.
_AT_LEAST = re.compile(r"at least\s+(<[^>]*>)*[\d.]+")
_LINE_ENDS = re.compile(r"</(?:div|tr)>")
_TAG = re.compile(r"<[^>]*>")
_UNIT = re.compile(r"[nµμm]s|min|[KMGT]iB(/s)?")
#: With two letters, and without a digit.
_WORD = re.compile(r"\D*[^\W\d_]{2}\D*")


def without_empty_outputs(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove the outputs that show nothing: progress displays that have ended."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [
                each for each in cell.outputs if "data" not in each or any(each["data"].values())
            ]
    return notebook


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove what only this machine has: its name, its user's, versions, times of execution."""
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in without_empty_outputs(notebook).cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            shown = output.get("data", output)
            for part in ("text", "text/plain", "text/html"):
                if part in shown:
                    shown[part] = _renamed(shown[part])
    return notebook


def _names() -> dict[str, str]:
    """Return what to write in place of the machine's name and the user's."""
    names = {socket.gethostname(): "host"}
    with suppress(OSError, KeyError):  # a user without a name, in a container
        names[getpass.getuser()] = "user"
    return names


def _renamed(text: str) -> str:
    for name, other in _names().items():
        whole = rf"(?<![\w.-]){re.escape(name)}(?![\w.-])"
        # In a column of text its width stays.
        text = re.sub(f"{whole}  +", lambda found, new=other: new.ljust(len(found[0])), text)
        text = re.sub(whole, other, text)
    return text


def words(cell: nbformat.NotebookNode) -> Counter[str]:
    """Return the words that a cell shows: of `words_in`, without tracebacks and stderr."""
    texts = []
    for output in cell.outputs:
        if "data" in output:
            page = _LINE_ENDS.sub("\n", output["data"].get("text/html", ""))
            texts.append(unescape(_TAG.sub(" ", page)) or output["data"].get("text/plain", ""))
        elif output.get("name") == "stdout":
            texts.append(output.text)
    return words_in("\n".join(texts))


def words_in(text: str) -> Counter[str]:
    """Return the words of a text, without numbers, units, names and order."""
    names = sorted({*_names(), *_names().values()}, key=len, reverse=True)
    text = _AT_LEAST.sub("", re.sub("|".join(map(re.escape, names)), "", text))
    lines = [line for line in map(str.strip, text.splitlines()) if not _OPTIONAL.search(line)]
    return Counter(
        word
        for word in re.split(r"[\s:;,.()\[\]'\"]+", " ".join(lines))
        if _WORD.fullmatch(word) and not _UNIT.fullmatch(word)
    )
