"""What ``%%time`` does, case by case: run by the tests, and counted by the benchmark.

``outcomes`` runs a case under both magics. A check runs under one, and raises where it fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.support.own_files import names_our_files
from tests.support.shells import run_cell

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MAGICS = ("time", "cudatime")
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
}
#: Cells whose magic's own line is a mistake.
MISTAKES = {
    "code on the magic's line is refused": "%%{magic} x = 1\ny = 2",
    "an unknown option is refused": "%%{magic} --unknown\ny = 2",
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

#: Each case as it is typed, with ``{magic}`` for the magic's name.
CASES = {
    **{f"cell: {name}": "%%{magic}\n" + body for name, body in CELLS.items()},
    **{f"cell: {name}": source for name, source in MISTAKES.items()},
    **{f"line: {name}": "%{magic} " + body for name, body in LINES.items()},
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


def _outcome(ip: InteractiveShell, source: str) -> Outcome:
    ip.user_ns["given"] = 10
    before = {*_names(ip)}
    ran = run_cell(ip, source, raising=False)
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


@contextmanager
def _transformers(ip: InteractiveShell) -> Iterator[None]:
    ip.ast_transformers.append(_Thousand())
    ip.input_transformers_post.append(_upper)
    try:
        yield
    finally:
        ip.ast_transformers.pop()
        ip.input_transformers_post.remove(_upper)


def outcomes(
    name: str, ip: InteractiveShell, magic: str = "cudatime"
) -> tuple[Outcome, Outcome, Outcome]:
    """What a case should do, and what it does under ``%%time`` and under ``%%cudatime``."""
    with _transformers(ip):
        # Not format(): the cells have braces of their own.
        theirs, ours = (_outcome(ip, CASES[name].replace("{magic}", m)) for m in ("time", magic))
    error = RAISES.get(name.partition(": ")[2])
    if error is None or theirs.error is not None:
        return theirs, theirs, ours
    return replace(theirs, error=error, timed=True, printed=ours.printed), theirs, ours


# --- checks: what a magic does on its own ----------------------------------------------------


def _value_assigned(magic: str, ip: InteractiveShell) -> None:
    assert run_cell(ip, f"value = %{magic} 2 + 2\nvalue").value == 4


def _value_in_out(magic: str, ip: InteractiveShell) -> None:
    run_cell(ip, f"%%{magic}\n41 + 1")
    assert run_cell(ip, "_").value == 42


def _functions_locals(magic: str, ip: InteractiveShell) -> None:
    line = f"get_ipython().run_line_magic('{magic}', 'local + 1')"
    assert run_cell(ip, f"def f():\n    local = 3\n    return {line}\nf()").value == 4


def _future_features(magic: str, ip: InteractiveShell) -> None:
    run_cell(ip, f"%%{magic}\nfrom __future__ import annotations")
    source = "def f(a: nowhere): ...\nf.__annotations__"
    assert run_cell(ip, source).value == {"a": "nowhere"}


def _notebooks_lines(magic: str, ip: InteractiveShell) -> None:
    number = ip.execution_count
    ran = run_cell(ip, f"%%{magic}\nx = 1\n\n1 / 0", raising=False)
    assert isinstance(ran.error, ZeroDivisionError)
    traceback = ran.stdout + ran.stderr
    assert f"Cell In[{number}]" in traceback or f"<ipython-input-{number}-" in traceback  # 7
    assert "----> 4 1 / 0" in traceback
    assert not names_our_files(traceback)


def _syntax_errors_line(magic: str, ip: InteractiveShell) -> None:
    number = ip.execution_count
    ran = run_cell(ip, f"%%{magic}\nx = 1\n\ny = (", raising=False)
    traceback = ran.stdout + ran.stderr
    assert re.search(rf'(Cell In\[{number}\]|"<ipython-input-{number}-\w+>"), line 4', traceback)
    assert traceback.count("gpumagic/") <= 3


CHECKS: dict[str, Callable[[str, InteractiveShell], None]] = {
    "the value can be assigned": _value_assigned,
    "the value is kept in Out": _value_in_out,
    "a line sees its function's locals": _functions_locals,
    "future features stay": _future_features,
}
#: In these ``%%time`` fails.
BETTER: dict[str, Callable[[str, InteractiveShell], None]] = {
    "lines are counted as the notebook does": _notebooks_lines,
    "a syntax error shows the line": _syntax_errors_line,
}


def _passes(check: Callable[[str, InteractiveShell], None], magic: str, ip: Any) -> bool:
    try:
        check(magic, ip)
    except Exception:  # whatever it is, the check has not passed
        return False
    return True


def scores(fresh: Callable[[], Any]) -> tuple[int, dict[str, int]]:
    """How many cases and checks there are, and how many each magic passes.

    ``fresh()`` is a context with a shell of its own, gpumagic loaded.
    """
    passed = dict.fromkeys(MAGICS, 0)
    for name in CASES:
        with fresh() as ip:
            expected, *found = outcomes(name, ip)
        for magic, outcome in zip(MAGICS, found, strict=True):
            passed[magic] += outcome == expected
    checks = {**CHECKS, **BETTER}
    for check in checks.values():
        for magic in MAGICS:
            with fresh() as ip:
                passed[magic] += _passes(check, magic, ip)
    return len(CASES) + len(checks), passed
