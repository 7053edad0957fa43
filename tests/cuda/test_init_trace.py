"""Where CUDA was initialised: the statement, line, cell and package."""

from __future__ import annotations

import builtins
import gc
import importlib
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumagic.cells.hooks import CellHooks
from gpumagic.cuda import init_trace
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
            "import torch\ndef train():\n    torch.ones(1, requires_grad=True).sum().backward()\n"
            "for _ in range(2):\n    train()",
            "while cell [{n}] ran for _ in range(2): (line 4)",
        ),
        (
            "import torch\nawait __import__('asyncio').sleep(0)\ntorch.cuda.init()",
            "while cell [{n}] ran torch.cuda.init() (line 3)",
        ),
    ],
    ids=["tensor", "backward", "await"],
)
def test_the_statement_is_named(kernel: Callable[..., Kernel], cell: str, expected: str) -> None:
    fresh = kernel()
    fresh.run("1 + 1")
    number = fresh.run(cell).execution_count
    assert expected.format(n=number) in location(fresh)


def test_the_package_is_named(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    fresh = kernel()
    (tmp_path / "greedy.py").write_text(
        "import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n"
    )
    (tmp_path / "innocent.py").write_text("import greedy\n")
    fresh.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    number = fresh.run("import innocent").execution_count
    output = location(fresh)
    assert f"while cell [{number}] ran import innocent (line 1), by the import of greedy" in output


def test_initialised_before_the_extension_was_loaded(kernel: Callable[..., Kernel]) -> None:
    late = kernel(load=False)
    late.run("import torch; torch.cuda.init()")
    late.run("%load_ext gpumagic")
    assert "CUDA had been initialised before gpumagic was loaded" in location(late)


#: Whether the shell's `run_code` is replaced, cells are watched for it, and imports are.
HOOKS = (
    "(lambda found: ('run_code' in vars(get_ipython()), "
    "found is not None and any('InitTrace' in repr(hook.after) for hook in found.extension.hooks), "
    "type(__import__('importlib')._bootstrap._module_locks) is not dict))"
    "(get_ipython().magics_manager.registry.get('GpuMagic'))"
)


def test_the_hooks_are_removed_once_cuda_is_initialised(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel(load=False)
    assert fresh.value(HOOKS) == (False, False, False)
    fresh.run("%load_ext gpumagic")
    assert fresh.value(HOOKS) == (True, True, True)
    fresh.run("import torch; torch.cuda.init()")
    assert fresh.value(HOOKS) == (False, False, False)


#: Python's import system.
BOOTSTRAP: Any = importlib.import_module("importlib._bootstrap")


class FakeDriver:
    """A replacement of `cuda.driver` that a test initialises."""

    def __init__(self) -> None:
        self.up = False

    def is_initialized(self) -> bool:
        return self.up

    known_initialized = is_initialized

    def init(self) -> None:
        self.up = True


@pytest.fixture
def trace(
    ip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[init_trace.InitTrace]:
    """A trace of the shell, and packages that initialise its driver; ``init`` does it, too."""
    driver = FakeDriver()
    (tmp_path / "greedy.py").write_text("import builtins\nbuiltins.test_init()\n")
    (tmp_path / "innocent.py").write_text("import greedy\nimport greedy_not\n")
    (tmp_path / "greedy_not.py").write_text("")
    (tmp_path / "failing.py").write_text("import greedy\nimport no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(builtins, "test_init", driver.init, raising=False)
    ip.user_ns["init"] = driver.init
    before = registered(ip)
    attached = init_trace.InitTrace(ip, CellHooks(ip))
    attached._driver = driver
    attached.attach()
    yield attached
    attached.detach()
    assert registered(ip) == before
    assert type(BOOTSTRAP._module_locks) is not type(attached._imports._locks)
    for name in ("greedy", "innocent", "greedy_not", "failing"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (
            "def f():\n    init()\n    import innocent\nf()\n1 + 1",
            "while cell [2] ran `f()` (line 4)",
        ),
        ("import innocent", "ran `import innocent` (line 1), by the import of greedy"),
        (
            "import importlib\nimportlib.import_module('innocent')",
            "ran `importlib.import_module('innocent')` (line 2), by the import of greedy",
        ),
        (
            "try:\n    import failing\nexcept ImportError:\n    pass",
            "while cell [2] ran `try:` (line 1), by the import of greedy",
        ),
        ("get_ipython().run_cell('1 + 1\\ninit()\\n2')\n1 + 1", "ran `init()` (line 2)"),
        ("get_ipython().run_cell('1 + 1')\ninit()", "while cell [2] ran `init()` (line 2)"),
        (
            "for i in range(3):\n    init()\n    get_ipython().run_cell('1')",
            "ran `for i in range(3):`",
        ),
        ("import greedy_not\ninit()\n1 / 0", "while cell [2] ran `init()` (line 2)"),
    ],
    ids=[
        *("before-import", "import", "import_module", "failed-import", "inner-cell", "after-inner"),
        *("around-inner", "then-fails"),
    ],
)
def test_the_exact_location(
    trace: init_trace.InitTrace, run_cell: Callable[..., Ran], cell: str, expected: str
) -> None:
    run_cell("1 + 1")
    run_cell(cell, raising=False)
    assert str(trace.location).endswith(expected) or f"{expected} (line" in str(trace.location)


def test_between_two_cells(trace: init_trace.InitTrace, run_cell: Callable[..., Ran]) -> None:
    """By a thread, or by a widget."""
    run_cell("import innocent_not", raising=False)
    trace._driver.init()
    run_cell("1 + 1")
    assert str(trace.location).endswith("between two cells, after cell [1] had ended")


def test_a_query_within_the_statement_itself(
    trace: init_trace.InitTrace, ip: Any, run_cell: Callable[..., Ran]
) -> None:
    def ask() -> None:
        trace._driver.init()
        trace.check()

    ip.user_ns["ask"] = ask
    run_cell("1 + 1\nask()")
    assert str(trace.location).endswith("ran `ask()` (line 2)")


def test_no_object_of_the_user_is_referenced(
    trace: init_trace.InitTrace, ip: Any, run_cell: Callable[..., Ran]
) -> None:
    """Also after a silent request, which has no event at its end."""
    result = ip.run_cell("object()", silent=True, store_history=False)
    reference = weakref.ref(result)
    del result
    ip.last_execution_result = None
    ip.displayhook.exec_result = None
    gc.collect()
    assert reference() is None


def test_an_error_of_the_trace_ends_only_the_trace(
    trace: init_trace.InitTrace, ip: Any, run_cell: Callable[..., Ran]
) -> None:
    def broken() -> bool:
        raise OSError("no driver")

    trace._driver.is_initialized = broken
    assert run_cell("40 + 2").value == 42
    assert trace._traced_run is None


def test_nothing_of_ours_is_on_the_stack(
    trace: init_trace.InitTrace, run_cell: Callable[..., Ran], tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(
        "import inspect\nSTACK = [f.filename for f in inspect.stack()]\nimport no_such_package\n"
    )
    ran = run_cell(
        "import inspect\nmine = [f.filename for f in inspect.stack()]\nimport failing",
        raising=False,
    )
    assert isinstance(ran.error, ModuleNotFoundError)
    assert not names_our_files("".join(traceback.format_exception(ran.error)))
    assert not names_our_files("\n".join(run_cell("mine").value))


def test_an_import_that_fails_fails_as_ever(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel()
    reply = fresh.run("import no_such_package", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "ModuleNotFoundError"
    assert not names_our_files(reply.shown)
    reply = fresh.run("from os import no_such_name", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "ImportError"
