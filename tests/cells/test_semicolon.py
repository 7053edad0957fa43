"""Where the value of a cell, or of a magic's statement, is silent."""

from __future__ import annotations

import pytest

from gpumagic.cells.semicolon import take_semicolon


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("f();", "f()"),
        ("f() ;  # shown in the log", "f()"),
        ("x = 1\nf();\n\n# the end\n", "x = 1\nf()"),
        ("0,2;", "0,2"),
        ("GPU-1a2b;", "GPU-1a2b"),  # no Python
        ("it's; ", "it's"),  # a string that does not end
    ],
)
def test_silent(source: str, code: str) -> None:
    assert take_semicolon(source) == (code, True)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "f()",
        "y = f()  # done;",
        "'a;'",
        "f(); g()",
        "f()\n# done;",
        "it's; b",
        "if x:\n    f();",
    ],
)
def test_shown(source: str) -> None:
    assert take_semicolon(source) == (source, False)
