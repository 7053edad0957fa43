"""A restart in place in what runs notebooks without a browser, and in Jupyter's console."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.frontends import lab

CELLS = [
    "%load_ext gpumagic\nimport torch, os\nx = torch.ones(4, device='cuda')\npid = os.getpid()",
    "print('before', torch.cuda.is_available(), os.getpid())",
    "%gpu off --restart",
    "import torch, os\nprint('after', torch.cuda.is_available(), os.getpid())",
]


def check(book: Any) -> None:
    """The executed notebook: every cell ran, the GPU is gone, and the process is the same."""
    cells = [cell for cell in book.cells if cell.cell_type == "code"][-len(CELLS) :]
    texts = ["".join(o.get("text", "") for o in cell.outputs) for cell in cells]
    _, before, pid = texts[1].split()
    assert before == "True"
    assert texts[3].split() == ["after", "False", pid]
    plain = [o.data["text/plain"] for o in cells[2].outputs if "data" in o]
    assert plain[0].startswith("restarted: this kernel sees no GPU")
    assert all(cell.execution_count for cell in cells)


def test_nbclient(notebook: Callable[..., Any]) -> None:
    check(notebook(CELLS))


def needs(package: str) -> pytest.MarkDecorator:
    reason = f"{package} is not installed (pip install --group frontends)"
    return pytest.mark.skipif(find_spec(package) is None, reason=reason)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            ["papermill", "--log-level=WARNING", "book.ipynb", "done.ipynb"],
            marks=needs("papermill"),
            id="papermill",
        ),
        pytest.param(
            "jupyter nbconvert --execute --to notebook --output done book.ipynb".split(),
            marks=needs("nbconvert"),
            id="nbconvert",
        ),
    ],
)
def test_runners(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path, command: list[str]
) -> None:
    environment = lab.environment_for(child_environment(), tmp_path)
    lab.write_notebook(tmp_path / "book.ipynb", CELLS)
    words = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    import nbformat  # takes a second of CPU time to import

    check(nbformat.read(tmp_path / "done.ipynb", as_version=4))


@needs("jupyter_console")
def test_jupyter_console(child_environment: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    import pexpect

    environment = lab.environment_for(child_environment(), tmp_path)
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--simple-prompt", "--ZMQTerminalInteractiveShell.banner="],
        env={**environment, "TERM": "dumb"},
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=300,
        dimensions=(40, 200),
    )
    try:
        for number, (cell, says) in enumerate(
            [
                ("%load_ext gpumagic", None),
                (
                    "import torch, os; torch.ones(1, device='cuda'); print('pid', os.getpid())",
                    "pid",
                ),
                ("%gpu off --restart", "restarted: this kernel sees no GPU"),
                ("import torch; print('after', torch.cuda.is_available())", "after False"),
            ],
            start=1,
        ):
            console.expect_exact(f"In [{number}]: ")
            console.sendline(cell)
            if says is not None:
                console.expect_exact(f"\n{says}" if number != 3 else says)
        console.expect_exact("In [5]: ")
    finally:
        console.close(force=True)


@needs("jupyter_console")
def test_watch_in_jupyter_console(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """Each look replaces the one before, until interrupted."""
    import pexpect

    from tests.virtual_gpu.world import World

    environment = lab.environment_for(child_environment(), tmp_path)
    world = World.current(environment)
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--simple-prompt", "--ZMQTerminalInteractiveShell.banner="],
        env={**environment, "TERM": "dumb"},
        cwd=str(tmp_path),
        encoding="utf-8",
        timeout=300,
        dimensions=(40, 200),
    )
    try:
        console.expect_exact("In [1]: ")
        console.sendline("%load_ext gpumagic")
        console.expect_exact("In [2]: ")
        console.sendline("%gpu watch --every 0.2")
        console.expect_exact("cuda:0")
        world.set_gpu(0, utilization=87)
        console.expect(r"(\x1b\[1A\x1b\[2K)+")  # up, over what was shown
        console.expect_exact("87 %")
        console.sendintr()
        console.expect_exact("In [3]: ")
    finally:
        console.close(force=True)
