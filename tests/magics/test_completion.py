"""Completions, line by line; and through IPython's own completer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import IPython
import pytest

from gpumagic.magics.completion import complete

VARIABLES = {"model": object(), "optimizer": object(), "_hidden": 1, "step": lambda: None}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%gpu au", ["auto"]),
        ("%%gpu o", ["off", "on"]),
        ("%%gpu d", []),  # doctor is no choice for a cell
        ("x = %gpu do", ["doctor"]),
        ("%gpu res", ["reset", "restart"]),
        ("%gpu restart --k", ["--keep"]),
        ("%gpu off --restart --keep mo", ["model"]),
        ("%gpu off --restart --keep model ", ["optimizer", "step"]),
        ("%gpu restart --keep a", ["all"]),
        ("%gpu auto --min-free 20GiB --i", ["--idle"]),
        ("%gpu off --min", []),
        ("%gpu --min-free 4GiB au", ["auto"]),
        ("%%cudatime -n 10 --li", ["--lines"]),
        ("%cudatime -n 10 mod", ["model"]),
        ("%gpu watch o", ["off", "on"]),
        ("%gpumem record o", ["on", "off"]),
        ("%cudatime on --ab", ["--above"]),
        ("%cudatime -q o", ["on", "off", "optimizer", "object", "oct", "open", "ord", "or"]),
        ("%%cudatime --lines -f ", ["step"]),
        ("%cudatime com", ["compare", "compile", "complex"]),
        ("%cudatime compare ", ["after", "before"]),
        ("%cudatime compare after ", ["before"]),
        ("%cudatime --against b", ["before"]),
        ("%gpumem free model o", ["optimizer"]),
    ],
)
def test_what_fits(line: str, expected: list[str]) -> None:
    assert sorted(complete(line, VARIABLES, ["before", "after"])) == sorted(expected)


@pytest.mark.parametrize(
    "line",
    [
        *("%cudatime y = mod", "%cudatime model.for", "%gpumem -q y = f(", "%%gpumem --save a"),
        *("%gpu plot pic", "%cudatime -s 'a", "%gpumem snapshot a/b"),
    ],
)
def test_statements_and_files_are_ipythons(line: str) -> None:
    assert complete(line, VARIABLES) == []


@pytest.mark.parametrize("line", ["gpu au", "x = 1", "%timeit au", "print(1) %gpu"])
def test_other_lines(line: str) -> None:
    assert complete(line, VARIABLES) == []
    assert complete(f"%%{line}", VARIABLES, first=False) == []


#: Prints what is imported for completions of options.
COMPLETIONS = """
import sys
from gpumagic.magics.completion import complete
for line in ("%gpu off --", "%cudatime on --", "%%gpumem --"):
    assert complete(line, {})
print(*sys.modules)
"""


def test_the_options_import_nothing_that_measures_or_draws(run_python: Callable[..., str]) -> None:
    """A key press may not take long, and starts no driver."""
    imported = {*run_python(COMPLETIONS, fresh=True).split()}
    assert {"torch", "pynvml", "rich", "pandas", "numpy"}.isdisjoint(imported)
    folders = {name.split(".")[1] for name in imported if name.startswith("gpumagic.")}
    assert folders.isdisjoint({"results", "selection", "memory", "restart", "cluster"})


def completed(ip: Any, line: str) -> list[str]:
    from IPython.core.completer import provisionalcompleter

    with provisionalcompleter():
        return [each.text for each in ip.Completer.completions(line, len(line))]


@pytest.mark.skipif(IPython.version_info < (8, 6), reason="it has no matchers")
def test_through_ipython(ip: Any, virtual_gpu: Any) -> None:
    """Ours first and alone; nothing of NVML or of the driver is called; gone once unloaded."""

    def asked() -> dict[str, int]:
        calls = virtual_gpu.all_calls().items()
        return {name: n for name, n in calls if name.startswith(("nvml", "cuInit"))}

    import torch

    ip.user_ns["model"] = torch.ones(9, device="cuda")
    before = asked()
    assert completed(ip, "%gpu au") == ["auto"]
    assert completed(ip, "%gpumem free mo") == ["model"]
    assert completed(ip, "%cudatime mod") == ["model"]
    assert {"log", "len", "lambda"} <= {*completed(ip, "%cudatime l")}
    assert completed(ip, "%gpumem o")[:2] == ["on", "off"]
    assert completed(ip, "%gpumem y = mod") == ["model"]
    assert asked() == before
    ip.run_line_magic("unload_ext", "gpumagic")
    assert completed(ip, "%gpu au") != ["auto"]
    ip.run_line_magic("load_ext", "gpumagic")
