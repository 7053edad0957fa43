"""The reference of the magics in ``docs/reference/magics.md``, generated from their own help."""

from __future__ import annotations

from gpumagic.magics.magic_class import MAGICS, GpuMagic
from tests.support.kernels import ROOT

README = ROOT / "README.md"
PAGE = ROOT / "docs" / "reference" / "magics.md"
_INTRODUCTION = """\
<!-- written by `make docs` from the magics' help; not by hand -->

# The magics

The help that `%gpu?`, `%cudatime?` and `%gpumem?` show. Every magic takes `-o` (return the result),
`-v NAME` (assign it to NAME) and `-q` (print nothing), and a trailing `;`.
"""
_SETTINGS = """\
## Defaults

`%config GpuMagic` lists them; `%config GpuMagic.NAME = VALUE` sets one, and a line
`c.GpuMagic.NAME = VALUE` in `ipython_config.py` sets it for every session.

| name | default | what it does |
|---|---|---|
"""


def helps() -> dict[str, str]:
    """Return the help of every magic, as ``%gpu?`` shows it."""
    return {name: getattr(GpuMagic, name).getdoc() for name in MAGICS}


def page() -> str:
    """Return the page."""
    magics = "\n".join(f"## `%{name}`\n\n```text\n{text}\n```\n" for name, text in helps().items())
    rows = "".join(
        f"| `{name}` | `{trait.default_value!r}` | {' '.join(trait.help.split())} |\n"
        for name, trait in sorted(GpuMagic.class_traits(config=True).items())
    )
    return f"{_INTRODUCTION}\n{magics}\n{_SETTINGS}{rows}"
