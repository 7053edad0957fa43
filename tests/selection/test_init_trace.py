"""Where CUDA was initialised: the statement, line, cell and package."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpumagic.cells.hooks import CellHooks
from gpumagic.cuda import nvml_check
from gpumagic.cuda.this_process import STATE
from gpumagic.selection import init_trace
from tests.support.kernels import Kernel
from tests.support.own_files import names_our_files
from tests.support.shells import Ran, registered


def location(kernel: Kernel) -> str:
    """Return the text of ``%gpu off`` where it is too late: also where CUDA was initialised."""
    return kernel.run("%gpu off").shown


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (
            "import torch\n\nx = torch.empty(1, device='cuda')\ny = 1",
            "while cell [{n}] ran x = torch.empty(1, device='cuda') (line 3)",
        ),
        (
            "import torch\nawait __import__('asyncio').sleep(0)\ntorch.cuda.init()",
            "while cell [{n}] ran torch.cuda.init() (line 3)",
        ),
        (
            "%%cudatime -q\nx = torch.ones(1, requires_grad=True)\nx.backward()",
            "while cell [{n}] ran %%cudatime (line 1)",
        ),
        (
            "%%cudatime\nx = torch.ones(1)\n\ny = x.cuda()\nz = 1",
            "while cell [{n}] ran y = x.cuda() (line 4)",
        ),
        (
            "%%gpu 0-3\nimport asyncio; await asyncio.sleep(0)\ndef f():\n    return x.cuda()\n"
            "x = torch.ones(1)\nf()",
            "while cell [{n}] ran f() (line 6)",
        ),
    ],
    ids=["tensor", "await", "not by torch.cuda", "in a magic", "awaiting in a magic"],
)
def test_the_statement_is_named(kernel: Callable[..., Kernel], cell: str, expected: str) -> None:
    fresh = kernel()
    fresh.run("import torch")
    number = fresh.run(cell).execution_count
    assert expected.format(n=number) in location(fresh)


def test_the_module_that_an_import_runs_is_named(
    kernel: Callable[..., Kernel], tmp_path: Path
) -> None:
    """Not only the notebook's statement: with file and line, below the table, and by the doctor."""
    (tmp_path / "peftlike").mkdir()
    (tmp_path / "peftlike/__init__.py").write_text("from peftlike.tuners import lora")
    module = tmp_path / "peftlike/tuners.py"
    module.write_text("import torch\nlora = torch.ones(1).cuda()")
    fresh = kernel()
    fresh.run(f"import sys, torch; sys.path.insert(0, {str(tmp_path)!r})")
    number = fresh.run("from peftlike import lora").execution_count
    said = f"CUDA was initialised while cell [{number}] ran `from peftlike import lora` (line 1), "
    said += f"in module peftlike.tuners ({module}, line 2)."
    for asked in ("%gpu", "%gpu doctor"):
        assert "".join(said.split()) in "".join(fresh.run(asked).text.split())


def test_child_processes_do_not_get_the_variable(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel()
    fresh.run("import os, subprocess, sys")
    assert fresh.value("os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK')") == "1"
    code = "import os; print(os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK'))"
    fresh.run(f"found = subprocess.check_output([sys.executable, '-c', {code!r}], text=True)")
    assert fresh.value("found.strip()") == "None"


def test_initialised_before_the_extension_was_loaded(kernel: Callable[..., Kernel]) -> None:
    late = kernel(load=False)
    late.run("import torch; torch.cuda.init()")
    late.run("%load_ext gpumagic")
    assert "CUDA had been initialised before gpumagic was loaded" in location(late)


#: Whether the shell's `run_code` is replaced, and cells are watched for it.
HOOKS = (
    "(lambda found: ('run_code' in vars(get_ipython()), "
    "found is not None and any('InitTrace' in repr(hook.after) for hook in found.hooks)))"
    "(get_ipython().magics_manager.registry.get('GpuMagic'))"
)


def test_the_hooks_are_removed_once_cuda_is_initialised(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel(load=False)
    assert fresh.value(HOOKS) == (False, False)
    fresh.run("%load_ext gpumagic")
    assert fresh.value(HOOKS) == (True, True)
    fresh.run("import torch; torch.cuda.init()")
    assert fresh.value(HOOKS) == (False, False)


@pytest.fixture
def trace(ip: Any) -> Iterator[init_trace.InitTrace]:
    """A trace of the shell; the notebook's ``init`` initialises its driver."""
    up: list[bool] = []
    driver = SimpleNamespace(is_initialized=lambda: bool(up), init=lambda: up.append(True))
    ip.user_ns["init"] = driver.init
    before = registered(ip)
    attached = init_trace.InitTrace(ip, CellHooks(ip))
    attached._driver = driver
    attached.attach()
    ip.user_ns["check"] = attached.check
    yield attached
    attached.detach()
    assert registered(ip) == before


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("def f():\n    init()\nf()\n1 + 1", "while cell [2] ran `f()` (line 3)"),
        ("get_ipython().run_cell('1 + 1\\ninit()\\n2')\n1 + 1", "ran `init()` (line 2)"),
        ("get_ipython().run_cell('1 + 1')\ninit()", "while cell [2] ran `init()` (line 2)"),
        (
            "for i in range(3):\n    init()\n    get_ipython().run_cell('1')",
            "ran `for i in range(3):`",
        ),
        ("1\ninit()\n1 / 0", "while cell [2] ran `init()` (line 2)"),
        ("1\ninit(); check()", "ran `init(); check()` (line 2)"),
    ],
    ids=["function", "inner-cell", "after-inner", "around-inner", "then-fails", "asked-within"],
)
def test_the_exact_location(
    trace: init_trace.InitTrace, run_cell: Callable[..., Ran], cell: str, expected: str
) -> None:
    run_cell("1 + 1")
    run_cell(cell, raising=False)
    assert str(trace.location).endswith(expected) or f"{expected} (line" in str(trace.location)


def test_another_extensions_run_code_is_called_and_stays(
    ip: Any, run_cell: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set before ours, and set after it."""
    seen, run_code = list[str](), ip.run_code

    def theirs(code: Any, *more: Any, **named: Any) -> Any:
        seen.append(code.co_filename)
        return run_code(code, *more, **named)

    monkeypatch.setattr(ip, "run_code", theirs, raising=False)
    driver = SimpleNamespace(is_initialized=lambda: False)
    trace = init_trace.InitTrace(ip, CellHooks(ip))
    trace._driver = driver
    trace.attach()
    run_cell("1 + 1")
    assert len(seen) == 1
    trace.detach()
    assert ip.run_code is theirs
    trace.attach()

    def later(*arguments: Any, **named: Any) -> Any:
        return theirs(*arguments, **named)

    ip.run_code = later
    trace.detach()
    assert ip.run_code is later


def test_between_two_cells(trace: init_trace.InitTrace, run_cell: Callable[..., Ran]) -> None:
    """By a thread, or by a widget."""
    run_cell("import innocent_not", raising=False)
    trace._driver.init()
    run_cell("1 + 1")
    assert str(trace.location).endswith("between two cells, after cell [1] had ended")


def test_an_error_of_the_trace_ends_only_the_trace(
    trace: init_trace.InitTrace, run_cell: Callable[..., Ran]
) -> None:
    def broken() -> bool:
        raise OSError("no driver")

    trace._driver.is_initialized = broken
    assert run_cell("40 + 2").value == 42
    assert trace._undo is None


def test_nothing_of_ours_is_on_the_stack(
    trace: init_trace.InitTrace, run_cell: Callable[..., Ran]
) -> None:
    mine = run_cell("import inspect\n[f.filename for f in inspect.stack()]").value
    assert not names_our_files("\n".join(mine))


# --- the variable that makes torch query NVML ----------------------------------------------------


@pytest.mark.parametrize("users", [None, "1", "0"])
def test_the_variable_is_unset_where_nvml_cannot_be_initialised(
    monkeypatch: pytest.MonkeyPatch, users: str | None
) -> None:
    """A value that the user has set is kept."""
    monkeypatch.setenv(nvml_check.VARIABLE, users or "1")
    monkeypatch.setattr(STATE, "nvml_check_set", users is None)
    nvml_check.withdraw()
    assert os.environ.get(nvml_check.VARIABLE) == users
    assert not nvml_check.is_ours()
