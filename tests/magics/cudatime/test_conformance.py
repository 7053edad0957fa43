"""What ``%%time`` does, case by case, and ``%%cudatime`` does the same: both are run."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.own_files import names_our_files
from tests.support.shells import run_cell as run_in

#: Cells; each is run as a cell of %%time and of %%cudatime.
CELLS = {
    "the last expression's value": "x = 20\nx + 1",
    "a last statement has no value": "x = 3",
    "assignments stay": "first = 1\nsecond = first + 1",
    "definitions stay and see the namespace": "def f():\n    return seven\nseven = 7\nf()",
    "a loop's variable stays": "for i in range(3):\n    pass",
    "names of the user's are seen": "given + 1",
    "a global statement": "def f():\n    global made\n    made = 5\nf()",
    "printed in order": "print('one')\nprint('two')\n3",
    "a string of many lines is untouched": 's = """a\n  b\n\n\tc"""\ns',
    "a line magic": "%precision 3",
    "a magic's value": "v = %sx echo hello\nlist(v)",
    "a shell command": "out = !echo hi\nlist(out)",
    "a cell magic inside": "%%capture caught\nprint('hidden')",
    "an indented line magic": "if True:\n    %precision 4",
    "the same magic inside": "%%{magic}\n5",
    "its line form inside": "q = 4\n%{magic} q + 1",
    "a future feature": "from __future__ import annotations\ndef f(a: no): ...\nf.__annotations__",
    "an empty cell": "",
    "only a comment": "# nothing",
    "an exception": "before = 1\n1 / 0\nafter = 2",
    "an exception in the last expression": "before = 1\n{}['key']",
    "an interrupt": "before = 1\nraise KeyboardInterrupt",
    "the AST is transformed": "1000 + 1",
    "the input is transformed": "TRANSFORMED",
    "a syntax error": "a = (",
    "an indentation error": "  x = 1\n y = 2",
    "return outside a function": "return 1",
}
#: Statements for the line forms.
LINES = {
    "an expression": "6 * 7",
    "an assignment": "x = 5",
    "several statements": "x = 5; y = x + 1",
    "an exception": "1 / 0",
    "a string with option-like words": "' -n 3 -q '",
    "a name with braces is not expanded": "'{given} $given'",
    "a syntax error": "a = (",
}

#: What cells and statements raise.
RAISES = {
    "an exception": "ZeroDivisionError",
    "an exception in the last expression": "KeyError",
    "an interrupt": "KeyboardInterrupt",
}
#: Each case as it is typed, with ``{magic}`` for the magic's name.
CASES = {
    **{("cell", name): "%%{magic}\n" + body for name, body in CELLS.items()},
    **{("line", name): "%{magic} " + body for name, body in LINES.items()},
}
_TIMES = re.compile(
    r"^(CPU times|Wall time|GPU |Wall |CPU |Host |no GPU|no sign|at most).*\n?", re.M
)


@dataclass(frozen=True)
class Outcome:
    value: str
    error: str | None
    printed: str
    names: dict[str, str]
    timed: bool


class _Thousand(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.copy_location(ast.Constant(2000), node) if node.value == 1000 else node


def _upper(lines: list[str]) -> list[str]:
    return [line.replace("TRANSFORMED", "'was transformed'") for line in lines]


def _names(ip: Any) -> dict[str, str]:
    hidden = re.compile(r"_.*|In|Out|exit|quit|get_ipython|open")
    return {
        name: re.sub(r"0x[0-9a-f]+", "0x", repr(value))
        for name, value in ip.user_ns.items()
        if not hidden.fullmatch(name)
    }


def _outcome(ip: Any, source: str) -> Outcome:
    ip.user_ns["given"] = 10
    before = {*_names(ip)}
    ran = run_in(ip, source, raising=False)
    value = re.sub(r"0x[0-9a-f]+", "0x", repr(ran.value))
    shown = ran.stdout + ran.text
    names = _names(ip)
    for name in {*names} - before:
        del ip.user_ns[name]
    out = re.sub(r"^Out\[\d+\]: .*\n?", "", ran.stdout, flags=re.M)
    return Outcome(
        value=value,
        error=None if ran.error is None else type(ran.error).__name__,
        printed="" if ran.error else _TIMES.sub("", out),
        names=names,
        timed="wall " in shown.lower(),
    )


@pytest.fixture
def transformed(ip: Any) -> Iterator[Any]:
    """A shell with transformers of the user's."""
    ip.ast_transformers.append(_Thousand())
    ip.input_transformers_post.append(_upper)
    yield ip
    ip.ast_transformers.pop()
    ip.input_transformers_post.remove(_upper)


@pytest.mark.parametrize("magic", ["cudatime", "cudatime --lines"])
@pytest.mark.parametrize("case", CASES, ids=": ".join)
def test_case(case: tuple[str, str], magic: str, transformed: Any) -> None:
    # Not format(): the cells have braces of their own.
    expected, ours = (
        _outcome(transformed, CASES[case].replace("{magic}", name)) for name in ("time", magic)
    )
    _, name = case
    if name in RAISES:  # an old IPython prints the traceback of such a cell itself, without times
        expected = replace(expected, error=RAISES[name], timed=True, printed=ours.printed)
    assert ours == expected


# Better than %%time.


@pytest.mark.parametrize("magic", ["cudatime", "cudatime --lines", "cudatime -n 1 -r 1 -w 0"])
def test_lines_are_counted_as_the_notebook_does(magic: str, ip: Any, run_cell: Any) -> None:
    number = ip.execution_count
    ran = run_cell(f"%%{magic}\nx = 1\n\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    traceback = ran.stdout + ran.stderr
    assert f"Cell In[{number}]" in traceback or f"<ipython-input-{number}-" in traceback  # 7
    assert "----> 4 1 / 0" in traceback
    assert not names_our_files(traceback)


def test_compiling_is_not_timed(ip: Any, run_cell: Any, clock: None) -> None:
    """%%time compiles the last expression while its clock runs."""

    class Slow(type(ip.compile)):  # type: ignore[misc]
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            time.sleep(0.05)
            return super().__call__(*arguments, **options)

    ip.compile.__class__ = Slow
    timing = run_cell("%%cudatime -o -q\nname = 1\nname + 1").value
    assert timing.compile_time >= 2 * 0.05  # the statements, and the last expression
    assert timing.wall.median < 0.01
