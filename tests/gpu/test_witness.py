"""Who initialised CUDA: named by statement, line, cell and package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kernels import Kernel


def culprit(kernel: Kernel) -> str:
    """What ``%gpu off`` says of the culprit, in a kernel in which it is too late."""
    return kernel.run("%gpu off").stderr


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (
            "import torch\n\nx = torch.empty(1, device='cuda')\ny = 1",
            "while cell [{n}] ran `x = torch.empty(1, device='cuda')` (line 3)",
        ),
        (
            "import torch\ndef train():\n    torch.ones(1, requires_grad=True).sum().backward()\n"
            "for _ in range(2):\n    train()",
            "while cell [{n}] ran `for _ in range(2):` (line 4)",
        ),
        (
            "import torch\nawait __import__('asyncio').sleep(0)\ntorch.cuda.init()",
            "while cell [{n}] ran `torch.cuda.init()` (line 3)",
        ),
    ],
    ids=["tensor", "backward", "await"],
)
def test_the_statement_is_named(kernel: Callable[..., Kernel], cell: str, says: str) -> None:
    fresh = kernel()
    fresh.run("1 + 1")
    number = fresh.run(cell).execution_count
    assert says.format(n=number) in culprit(fresh)


def test_the_package_is_named(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    fresh = kernel()
    (tmp_path / "greedy.py").write_text(
        "import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0\n"
    )
    (tmp_path / "innocent.py").write_text("import greedy\n")
    fresh.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    number = fresh.run("import innocent").execution_count
    said = culprit(fresh)
    assert f"while cell [{number}] ran `import innocent` (line 1), by the import of greedy" in said


def test_before_the_extension_was_loaded_is_said_so(kernel: Callable[..., Kernel]) -> None:
    late = kernel(load=False)
    late.run("import torch; torch.cuda.init()")
    late.run("%load_ext gpumagic")
    assert "CUDA had been initialised before gpumagic was loaded" in culprit(late)


def test_the_hooks_go_once_cuda_is_initialised(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel(load=False)
    hooks = "(__import__('builtins').__import__ is original, 'run_code' in vars(get_ipython()))"
    fresh.run("original = __import__('builtins').__import__")
    fresh.run("%load_ext gpumagic")
    assert fresh.value(hooks) == (False, True)
    fresh.run("import torch; torch.cuda.init()")
    assert fresh.value(hooks) == (True, False)


def test_an_import_that_fails_fails_as_ever(kernel: Callable[..., Kernel]) -> None:
    fresh = kernel()
    assert fresh.value("__import__('builtins').__import__.__name__") == "watched_import"
    reply = fresh.run("import no_such_package", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "ModuleNotFoundError"
    reply = fresh.run("from os import no_such_name", raising=False)
    assert reply.error is not None
    assert reply.error["ename"] == "ImportError"
