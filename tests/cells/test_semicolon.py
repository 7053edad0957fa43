"""Where the value of a cell, or of a magic's statement, is silent."""

from __future__ import annotations

import pytest

from gpumagic.cells.semicolon import take_semicolon

#: By source, its code without the ``;`` that silences it; None where none does.
SOURCES = {
    "f();": "f()",
    "f() ;  # shown in the log": "f()",
    "x = 1\nf();\n\n# the end\n": "x = 1\nf()",
    "0,2;": "0,2",
    "GPU-1a2b;": "GPU-1a2b",  # no Python
    "it's; ": "it's",  # a string that does not end
    "": None,
    "f()": None,
    "y = f()  # done;": None,
    "'a;'": None,
    "f(); g()": None,
    "f()\n# done;": None,
    "it's; b": None,
    "if x:\n    f();": None,
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_semicolon_at_the_end(source: str) -> None:
    code = SOURCES[source]
    assert take_semicolon(source) == ((source, False) if code is None else (code, True))
