"""What ``%%time`` does, case by case, and ``%%cudatime`` does the same: both are run."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

#: Cells; each is run as a cell of %%time and of %%cudatime.
CELLS = {
    "the last expression's value": "x = 20\nx + 1",
    "an only expression": "6 * 7",
    "a trailing semicolon": "6 * 7;",
    "a semicolon and a comment": "6 * 7;  # quiet",
    "a semicolon in a string": "'a;'",
    "a last statement has no value": "x = 3",
    "assignments stay": "first = 1\nsecond = first + 1",
    "definitions stay and see the namespace": "def f():\n    return seven\nseven = 7\nf()",
    "imports stay": "import string as st\nst.digits",
    "a loop's variable stays": "for i in range(3):\n    pass",
    "names of the user's are seen": "given + 1",
    "a global statement": "def f():\n    global made\n    made = 5\nf()",
    "a class": "class A:\n    b = 1\nA.b",
    "a comprehension sees the cell's names": "n = 2\n[n * k for k in range(3)]",
    "printed in order": "print('one')\nprint('two')\n3",
    "an expression that is None": "print('x')",
    "a string of many lines is untouched": 's = """a\n  b\n\n\tc"""\ns',
    "a line magic": "%precision 3",
    "a magic's value": "v = %sx echo hello\nlist(v)",
    "a shell command": "out = !echo hi\nlist(out)",
    "a cell magic inside": "%%capture caught\nprint('hidden')",
    "an indented line magic": "if True:\n    %precision 4",
    "the same magic inside": "%%{magic}\n5",
    "its line form inside": "q = 4\n%{magic} q + 1",
    "an empty cell": "",
    "blank lines": "\n\n",
    "only a comment": "# nothing",
    "an exception": "before = 1\n1 / 0\nafter = 2",
    "an exception in the last expression": "before = 1\n{}['key']",
    "an exception of the user's own": "class Mine(Exception): ...\nraise Mine('x')",
    "an interrupt": "before = 1\nraise KeyboardInterrupt",
    "the AST is transformed": "1000 + 1",
    "the input is transformed": "TRANSFORMED",
    "a syntax error": "a = (",
    "an indentation error": "  x = 1\n y = 2",
    "return outside a function": "return 1",
    "a generator": "list(n for n in range(3))",
    "a lambda as value": "(lambda: 3)()",
    "a walrus": "(w := 9)",
    "deleting a name": "del given",
    "history's names": "_ih[-1] != ''",
    "code on the magic's line is refused": None,
    "an unknown option is refused": None,
}
#: Statements for the line forms.
LINES = {
    "an expression": "6 * 7",
    "a semicolon": "6 * 7;",
    "an assignment": "x = 5",
    "several statements": "x = 5; y = x + 1",
    "an exception": "1 / 0",
    "a string with option-like words": "' -n 3 -q '",
    "a name with braces is not expanded": "'{given} $given'",
    "a syntax error": "a = (",
}

#: What cells and statements raise. Old IPython (8.12) printed the traceback of such a cell itself,
#: without times, and let Run All go on.
RAISES = {
    "an exception": "ZeroDivisionError",
    "an exception in the last expression": "KeyError",
    "an exception of the user's own": "Mine",
    "an interrupt": "KeyboardInterrupt",
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


def _outcome(ip: Any, run_cell: Any, source: str) -> Outcome:
    ip.user_ns["given"] = 10
    before = {*_names(ip)}
    ran = run_cell(source, raising=False)
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
        timed="Wall" in shown,
    )


def _compare(name: str, theirs: Outcome, ours: Outcome) -> None:
    if name in RAISES:
        assert ours.error == RAISES[name]
        assert ours.timed
        if theirs.error is None:
            theirs = replace(theirs, error=ours.error, timed=True, printed=ours.printed)
    assert ours == theirs


@pytest.fixture
def _transformers(ip: Any) -> Any:
    ip.ast_transformers.append(_Thousand())
    ip.input_transformers_post.append(_upper)
    yield
    ip.ast_transformers.pop()
    ip.input_transformers_post.remove(_upper)


@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("name", CELLS)
def test_cell(name: str, ip: Any, run_cell: Any) -> None:
    outcomes = []
    for magic in ("time", "cudatime"):
        body = CELLS[name]
        if name.startswith("code on"):
            source = f"%%{magic} x = 1\ny = 2"
        elif name.startswith("an unknown"):
            source = f"%%{magic} --unknown\ny = 2"
        else:
            assert body is not None
            source = f"%%{magic}\n" + body.replace("{magic}", magic)
        outcomes.append(_outcome(ip, run_cell, source))
    _compare(name, *outcomes)


@pytest.mark.parametrize("name", LINES)
def test_line(name: str, ip: Any, run_cell: Any) -> None:
    outcomes = [_outcome(ip, run_cell, f"%{magic} {LINES[name]}") for magic in ("time", "cudatime")]
    _compare(name, *outcomes)


@pytest.mark.parametrize("magic", ["time", "cudatime"])
def test_the_value_can_be_assigned(magic: str, run_cell: Any) -> None:
    assert run_cell(f"value = %{magic} 2 + 2\nvalue").value == 4


@pytest.mark.parametrize("magic", ["time", "cudatime"])
def test_the_value_is_kept_in_out(magic: str, ip: Any, run_cell: Any) -> None:
    run_cell(f"%%{magic}\n41 + 1")
    assert run_cell("_").value == 42


@pytest.mark.parametrize("magic", ["time", "cudatime"])
def test_a_line_sees_its_functions_locals(magic: str, run_cell: Any) -> None:
    source = (
        f"def f():\n    local = 3\n    return get_ipython().run_line_magic('{magic}', 'local + 1')"
    )
    assert run_cell(source + "\nf()").value == 4


@pytest.mark.parametrize("magic", ["time", "cudatime"])
def test_future_features_stay(magic: str, run_cell: Any) -> None:
    run_cell(f"%%{magic}\nfrom __future__ import annotations")
    assert run_cell("def f(a: nowhere): ...\nf.__annotations__").value == {"a": "nowhere"}


# Better than %%time.


@pytest.mark.parametrize("options", ["", " -n 1 -r 1 -w 0"])
def test_lines_are_counted_as_the_notebook_does(options: str, ip: Any, run_cell: Any) -> None:
    number = ip.execution_count
    ran = run_cell(f"%%cudatime{options}\nx = 1\n\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    traceback = ran.stdout + ran.stderr
    assert f"Cell In[{number}], line 4" in traceback
    assert "----> 4 1 / 0" in traceback
    assert "gpumagic/" not in traceback


def test_a_syntax_error_shows_the_line(ip: Any, run_cell: Any) -> None:
    number = ip.execution_count
    ran = run_cell("%%cudatime\nx = 1\n\ny = (", raising=False)
    traceback = ran.stdout + ran.stderr
    assert f"Cell In[{number}], line 4" in traceback
    assert traceback.count("gpumagic/") <= 3


def test_compiling_is_not_timed(run_cell: Any) -> None:
    """%%time compiles the last expression while its clock runs."""
    body = "name = 1\nlambda: [" + "name + 1, " * 8_000 + "]"
    timing = run_cell("%%cudatime -o -q\n" + body).value
    assert timing.compile_time > 0.1
    assert timing.wall.median < timing.compile_time / 10
