"""A restart in place in what runs notebooks without a browser, and in Jupyter's console.

In nbclient itself the demo notebooks are run: `tests.tools.test_demo`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.frontends import lab
from tests.support import forks

CELLS = [
    "%load_ext gpumagic\nimport torch, os\nx = torch.ones(4, device='cuda')\npid = os.getpid()",
    "print('before', torch.cuda.is_available(), os.getpid())",
    "%gpu off --restart",
    "import torch, os\nprint('after', torch.cuda.is_available(), os.getpid())",
]


def needs(package: str) -> pytest.MarkDecorator:
    reason = f"{package} is not installed (pip install --group frontends)"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


@needs("papermill")
def test_papermill(child_environment: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """Every cell ran, the GPU is gone, and the process is the same."""
    import nbformat  # takes a second of CPU time to import

    lab.write_notebook(tmp_path / "book.ipynb", CELLS)
    options = ("--log-level=WARNING", "book.ipynb", "done.ipynb")
    command = [sys.executable, "-m", "papermill", *options]
    forks.output(command, env=child_environment(), cwd=tmp_path, fresh=True)
    book: Any = nbformat.read(tmp_path / "done.ipynb", as_version=4)
    _, before, restart, after = book.cells
    pid = before.outputs[0].text.split()[-1]
    assert before.outputs[0].text == f"before True {pid}\n"
    assert after.outputs[0].text == f"after False {pid}\n"
    assert "restarted: this process sees no GPU" in str(restart.outputs)
    assert all(cell.execution_count for cell in book.cells)


@pytest.fixture
def console(child_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Iterator[Any]:
    """Jupyter's console in a terminal, with gpumagic loaded."""
    import pexpect

    environment = child_environment()
    words = ["-m", "jupyter_console", "--simple-prompt", "--ZMQTerminalInteractiveShell.banner="]
    found = pexpect.spawn(
        sys.executable,
        words,
        env={**environment, "TERM": "dumb"},
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=300,
        dimensions=(40, 200),
    )
    try:
        found.expect_exact("In [1]: ")
        found.sendline("%load_ext gpumagic")
        yield found
    finally:
        found.close(force=True)


@needs("jupyter_console")
def test_jupyter_console(console: Any) -> None:
    for number, (cell, says) in enumerate(
        [
            ("import torch, os; torch.ones(1, device='cuda'); print('pid', os.getpid())", "\npid"),
            ("%gpu off --restart", "restarted: this process sees no GPU"),
            ("import torch; print('after', torch.cuda.is_available())", "\nafter False"),
            ("%gpu watch", "live where HTML is shown"),
        ],
        start=2,
    ):
        console.expect_exact(f"In [{number}]: ")
        console.sendline(cell)
        console.expect_exact(says)
    console.expect_exact("In [6]: ")
