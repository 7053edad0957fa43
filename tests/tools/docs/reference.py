"""Generate the reference of every option in README.md from the magics' help."""

from __future__ import annotations

from importlib import import_module

from tests.support.kernels import ROOT

README = ROOT / "README.md"
MAGICS = ("gpu", "cudatime", "gpumem")
_START = "<!-- reference: written by `make docs` from the magics' help; not by hand -->\n"
_END = "<!-- end of the reference -->\n"


def reference() -> str:
    """Return the help of every magic, as ``%gpu?`` shows it, in Markdown."""
    helps = {name: import_module(f"gpumagic.magics.{name}.command").help_text() for name in MAGICS}
    return "\n".join(
        f"### `%{name}`\n\n```text\n{text.strip()}\n```\n" for name, text in helps.items()
    )


def updated(readme: str) -> str:
    """Return the README with the current reference.

    Raises:
        ValueError: the two markers are not there, each once.
    """
    if readme.count(_START) != 1 or readme.count(_END) != 1:
        raise ValueError("README.md must hold the reference's two markers, each once")
    head, rest = readme.split(_START)
    _, tail = rest.split(_END)
    return f"{head}{_START}\n{reference()}\n{_END}{tail}"
