"""Check that a test leaves no change of global state behind."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import IPython  # noqa: F401  before the first test: IPython 7 lengthens sys.path when it is imported

from gpumagic.selection import claims
from tests.virtual_gpu import World

#: Set by pytest itself between the phases of a test, and by torch 2.6 when CUDA starts.
_NOT_LOOKED_AT = {"PYTEST_CURRENT_TEST", "CUDA_MODULE_LOADING"}
#: What packages change when they are first imported (six, debugpy, torch, bleach): not looked at
#: where the block brought one in.
_ON_IMPORT = {"os.environ", "sys.meta_path", "hooks of sys", "builtins"}
#: The functions of torch that a gate, a ledger or a hook might replace.
_TORCH = (
    "torch",
    "torch._C",
    "torch.cuda",
    "torch.cuda.memory",
    "torch.cuda.random",
    "torch.cuda.streams",
    "torch.accelerator",
    "torch.accelerator.memory",
    "torch.nn",
    "torch.optim",
    "torch.Tensor",
    "torch.Generator",
)


#: Threads that outlive a test on purpose: of clients that several tests share.
SHARED: set[threading.Thread] = set()
#: Seconds that a thread has to end after a test: a safety net, a machine may be slow.
PATIENCE = 60.0


def state() -> dict[str, Any]:
    """Return the state that is compared before and after a test, by ``==``."""
    return {
        "os.environ": {k: v for k, v in os.environ.items() if k not in _NOT_LOOKED_AT},
        "working folder": Path.cwd(),
        "sys.path": list(sys.path),
        "sys.meta_path": [id(finder) for finder in sys.meta_path],
        "sys.path_hooks": [id(hook) for hook in sys.path_hooks],
        "hooks of sys": (sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook),
        "threading.excepthook": threading.excepthook,
        "trace functions": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "standard streams": (id(sys.__stdin__), id(sys.__stdout__), id(sys.__stderr__)),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "builtins": {name: id(value) for name, value in vars(builtins).items() if name != "_"},
        "__main__": id(sys.modules["__main__"]),
        "claim of GPUs": claims.held(),
        "CUDA": _cuda(),
    }


def _cuda() -> tuple[int, bool]:
    """Return the current device, and whether CUDA was started under a choice of GPUs, which stays.

    What a test's ``"cuda"`` is depends on both.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return 0, False
    with suppress(LookupError):  # on a real GPU
        chosen = torch._C._cuda_getDeviceCount() < World.current()._state.n_gpus
        return torch._C._cuda_getDevice(), chosen
    return torch._C._cuda_getDevice(), False


def torch_functions() -> dict[str, dict[str, Any]]:
    """Return the attributes of torch's modules and classes, if torch is loaded."""
    found: dict[str, dict[str, Any]] = {}
    for owner in _TORCH:
        parent, _, name = owner.rpartition(".")
        holder: Any = sys.modules.get(owner) or getattr(sys.modules.get(parent), name, None)
        if holder is not None:
            found[owner] = dict(vars(holder))
    return found


def _replaced(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    """Return the functions of torch that have been replaced."""
    return [
        f"{owner}.{name}"
        for owner, names in before.items()
        for name, value in names.items()
        if after[owner].get(name) is not value
        if callable(value) and not isinstance(value, type)
    ]


@contextmanager
def filters_stay() -> Iterator[None]:
    """Assert that the block leaves the warning filters as they were, but for torch's own.

    A package that is first imported in the block may have filters of its own.
    """
    before, modules = _filters(), frozenset(sys.modules)
    yield
    if not _packages_since(modules):
        assert _filters() == before, "warning filters left changed"


def _filters() -> list[Any]:
    """Return the filters but those for torch's modules: torch 2.6 sets one when it compiles."""
    return [f for f in warnings.filters if not getattr(f[3], "pattern", "").startswith("torch.")]


def _packages_since(modules: frozenset[str]) -> set[str]:
    """The packages, others than ours, of which nothing was among these modules."""
    if modules.issuperset(sys.modules):
        return set()
    new = frozenset(sys.modules) - modules
    there = {name.partition(".")[0] for name in modules} | {"gpumagic", "tests"}
    return {name.partition(".")[0] for name in new} - there


def forget_peaks() -> None:
    """Reset torch's peaks of memory, where an earlier test has used CUDA in this process.

    While the user's peak is the higher one, gpumagic leaves torch's counters wrapped.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        for ordinal in range(torch._C._cuda_getDeviceCount()):
            if torch._C._cuda_hasPrimaryContext(ordinal):
                torch.cuda.reset_peak_memory_stats(ordinal)


@contextmanager
def nothing_leaks() -> Iterator[None]:
    """Assert that the block leaves the interpreter, and torch, as it found them.

    What a package does when it is first imported in the block is no leak.
    """
    before, functions, threads = state(), torch_functions(), set(threading.enumerate())
    modules = frozenset(sys.modules)
    yield
    left = _threads_left(threads)
    assert not left, f"threads left running: {[t.name for t in left]}"
    after = state()
    looked_at = before.keys() - (_ON_IMPORT if _packages_since(modules) else set())
    # torch's optimizers import its compiler, which in torch 2.6 lengthens the path…
    dynamo_came = "torch._dynamo" not in modules and "torch._dynamo" in sys.modules
    looked_at -= {"sys.path"} if dynamo_came else set()
    changed = {k: _difference(before[k], after[k]) for k in looked_at if before[k] != after[k]}
    assert not changed, f"global state left changed: {changed}"
    replaced = _replaced(functions, torch_functions())
    if dynamo_came:  # …and which wraps this one
        replaced = [name for name in replaced if name != "torch.manual_seed"]
    assert not replaced, f"functions of torch left replaced: {replaced}"


def _difference(before: Any, after: Any) -> Any:
    """Return only what differs: a complete environment would hide the one variable."""
    if isinstance(before, dict) and isinstance(after, dict):
        return {
            name: (before.get(name, "(absent)"), after.get(name, "(absent)"))
            for name in sorted({*before, *after})
            if before.get(name, "(absent)") != after.get(name, "(absent)")
        }
    return before, after


def _threads_left(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that are still running after `PATIENCE`: an ending takes a moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        expected = before | SHARED
        left = [t for t in threading.enumerate() if t not in expected and t.is_alive()]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)
