"""The fixtures: real shells, kernels, notebooks and terminals, and the check for leaks."""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import leaks, outside
from tests.support.interrupts import UNTIL_INTERRUPTED
from tests.support.kernels import CellError, Kernel
from tests.support.shells import Ran
from tests.support.terminal import Terminal

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def test_the_shell_is_real(ip: InteractiveShell, run_cell: Callable[..., Ran]) -> None:
    ran = run_cell("print('out')\nimport sys; print('err', file=sys.stderr)\nx = 1\nx + 1")
    assert (ran.value, ran.stdout.splitlines()[0], ran.stderr) == (2, "out", "err\n")
    assert ip.user_ns["x"] == 1
    assert ip.user_ns["_"] == 2
    assert run_cell("get_ipython()").value is ip
    shown = run_cell("from IPython.display import HTML, display\ndisplay(HTML('<b>1</b>'))")
    assert shown.html == "<b>1</b>"
    with pytest.raises(ZeroDivisionError):
        run_cell("1 / 0")
    failed = run_cell("1 / 0", raising=False)
    assert isinstance(failed.error, ZeroDivisionError)
    assert "ZeroDivisionError" in failed.stdout + failed.stderr
    assert set(ip.magics_manager.magics["line"]) >= {"gpu", "cudatime", "gpumem"}


def test_each_shell_is_fresh(ip: InteractiveShell) -> None:
    assert "x" not in ip.user_ns
    assert ip.execution_count == 1


def test_a_kernel_is_real(kernel: Callable[..., Kernel]) -> None:
    k = kernel(env={"FROM_THE_TEST": "1"})
    assert k.value("__import__('os').environ['FROM_THE_TEST']") == "1"
    reply = k.run("print('a'); display(1)\n2")
    assert (reply.status, reply.stdout, reply.text, reply.value) == ("ok", "a\n", "1", "2")
    with pytest.raises(CellError, match="ZeroDivisionError"):
        k.run("1 / 0")
    failed = k.run("1 / 0", raising=False)
    assert failed.error is not None
    assert failed.error["ename"] == "ZeroDivisionError"
    k.run("pass")  # ipykernel 6 aborts what follows a failure closely; this is tried again
    waiting = k.submit(f"import time\nprint('in', flush=True)\n{UNTIL_INTERRUPTED}")
    k.until(waiting, "in")
    k.interrupt()
    interrupted = k.wait(waiting)
    # Where the interrupt comes within its own code, IPython may add that it cannot format it.
    assert interrupted.stdout.startswith("in\n")
    assert "KeyboardInterrupt" in interrupted.shown


def test_help_needs_no_program_that_shows_pages(
    run_cell: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert "%gpu off" in run_cell("%gpu?").text


def test_a_kernel_that_does_not_answer_is_reported(kernel: Callable[..., Kernel]) -> None:
    k = kernel(load=False)
    with pytest.raises(TimeoutError):
        k.run("import time; time.sleep(60)", timeout=0.3)
    k = kernel(load=False)
    with pytest.raises(RuntimeError, match="the kernel died"):
        k.run("import os; os._exit(1)")


def test_a_notebook_is_executed(notebook: Callable[..., Any]) -> None:
    executed = notebook(["%load_ext gpumagic", "1 + 1"])
    assert executed.cells[1].outputs[0]["data"]["text/plain"] == "2"


def test_a_terminal_is_real(terminal: Callable[..., Terminal]) -> None:
    t = terminal()
    assert t.run("1 + 1") == "Out[2]: 2"
    assert t.run("for i in range(2):\n    print(i)") == "0\n1"
    assert t.run("%%capture out\nprint(3)") == ""
    assert t.run("out.stdout") == r"Out[5]: '3\n'"


_STOP = threading.Event()


def _environment() -> None:
    os.environ["LEFT_BEHIND"] = "1"


def _meta_path() -> None:
    sys.meta_path.append(object())  # type: ignore[arg-type]


def _trace() -> None:
    sys.settrace(lambda *_: None)


def _thread() -> None:
    threading.Thread(target=_STOP.wait, daemon=True, name="left").start()


def _torch() -> None:
    import torch

    torch.cuda.is_available = lambda: False


@pytest.mark.parametrize(
    ("leak", "named"),
    [
        (_environment, "LEFT_BEHIND"),
        (_meta_path, "sys.meta_path"),
        (_trace, "trace functions"),
        (_thread, "left"),
        (_torch, "torch.cuda.is_available"),
    ],
)
def test_a_leak_is_found(leak: Callable[[], None], named: str) -> None:
    """Each kind is found and named; restored here by hand."""
    import torch

    trace, available = sys.gettrace(), torch.cuda.is_available
    check = leaks.nothing_leaks()
    check.__enter__()
    leak()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leaks, "PATIENCE", 0.1)
            with pytest.raises(AssertionError, match=named):
                check.__exit__(None, None, None)
    finally:
        os.environ.pop("LEFT_BEHIND", None)
        if leak is _meta_path:
            sys.meta_path.pop()
        sys.settrace(trace)
        torch.cuda.is_available = available
        if leak is _thread:
            _STOP.set()


def test_peaks_of_earlier_tests_are_forgotten(virtual_gpu: Any) -> None:
    import torch

    del virtual_gpu
    x = torch.empty(2**20, device="cuda:0")
    del x
    assert torch.cuda.max_memory_allocated(0) > torch.cuda.memory_allocated(0)
    leaks.forget_peaks()
    assert torch.cuda.max_memory_allocated(0) == torch.cuda.memory_allocated(0)


def test_warnings_are_errors() -> None:
    with pytest.raises(UserWarning, match="loud"):
        warnings.warn("loud", stacklevel=1)


def test_variables_of_the_caller_are_removed(tmp_path: Path) -> None:
    """Those that every machine sets differently stay; those that tests set do not."""
    stays = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MPLBACKEND", "PYTHONSTARTUP", "COLUMNS"]
    stays += ["NO_COLOR", "FORCE_COLOR", "PYTEST_ADDOPTS"]
    comes = ["HOME", "PATH", "LC_ALL", "TZ", "TERM", "PYTHONPATH", "XDG_CACHE_HOME"]
    assert [*outside.left(dict.fromkeys([*comes, *stays], "x"))] == comes
    # A shell's table; a long path is what it was.
    long = {"_ModuleTable_": "x" * 5000, "PATH": "x" * 5000}
    assert [*outside.left(long)] == ["PATH"]
    assert not {*stays} & {*os.environ}
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "libcudart.so.12").touch()
    path = f"/usr/lib/mine:{tmp_path / 'cuda'}"
    assert outside.left({"LD_LIBRARY_PATH": path}) == {"LD_LIBRARY_PATH": "/usr/lib/mine"}
    assert outside.left({"LD_LIBRARY_PATH": str(tmp_path / "cuda")}) == {}


def test_a_shell_ends_with_its_test() -> None:
    """Not with the process: nothing of what its cells have shown stays."""
    from tests.support.shells import run_cell, shell

    class Shown: ...

    with shell() as ip:
        ip.user_ns["Shown"] = Shown
        run_cell(ip, "Shown()")
        alive = weakref.ref(ip), weakref.ref(ip.user_ns["_"])
        del ip
    gc.collect()
    assert [each() for each in alive] == [None, None]


def test_what_the_tests_write_is_for_their_user_alone_to_change(
    run_python: Callable[..., str],
) -> None:
    code = """
import os, resource
from tests.support import outside
os.umask(0o002)
outside.leave()
print(oct(os.umask(0)), resource.getrlimit(resource.RLIMIT_CORE)[0])
"""
    assert run_python(code) == "0o22 0"
