"""Build the sdist and the wheel, and use the wheel as a user does: ``make test-wheel``.

It is installed, with what it depends on and nothing else, into a new environment; the three magics
and the command run there, outside the checkout, on a virtual GPU. Then it is uninstalled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.device import ROOT
from tests.support.outside import left
from tests.virtual_gpu import Scenario, environment

#: What a user's first cells do, and a word that each of them shows.
_CELLS = """
import contextlib, io, sys
import gpumagic
from IPython.core.interactiveshell import InteractiveShell

assert gpumagic.__file__.startswith(sys.prefix), f"{gpumagic.__file__} is not what was installed"
shell = InteractiveShell.instance()
for cell, word in (
    ("%load_ext gpumagic", ""),
    ("%gpu 0", "applied"),
    ("import torch; x = torch.zeros(1 << 20, device='cuda')", ""),
    ("%%cudatime\\ny = x + 1", "on cuda:0"),
    ("%gpumem vars", "4.00 MiB"),
):
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        shell.run_cell(cell, store_history=True).raise_error()
    shown = stdout.getvalue()
    assert word in shown, f"{cell} showed {shown!r}"
    print(shown, end="")
"""


def build(folder: Path) -> Path:
    """Build the sdist, and from it the wheel; return the wheel."""
    _run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment; return the folder of its commands."""
    _run([sys.executable, "-m", "venv", str(folder)])
    commands = folder / "bin"
    pip = [str(commands / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "install", "--no-compile", str(wheel)])  # most of it is never imported here
    _run([*pip, "check"])
    return commands


def use(commands: Path, folder: Path) -> None:
    """Run the magics and the command, with `folder` as the working folder."""
    env = environment(Scenario(devices=2), left(os.environ))
    for command in ([commands / "python", "-c", _CELLS], [commands / "gpumagic"]):
        subprocess.run(command, cwd=folder, env=env, timeout=600, check=True)


def uninstall(commands: Path, used: Path) -> None:
    """Uninstall it; what stays is on the page docs/install.md, and none of it is here."""
    _run([str(commands / "python"), "-m", "pip", "uninstall", "--yes", "gpumagic"])
    left_behind = [*commands.parent.rglob("*gpumagic*"), *used.iterdir()]
    if left_behind:
        raise SystemExit(f"left behind: {left_behind}")


def _run(command: list[str]) -> None:
    """Run what says nothing if all is well."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        commands = install(wheel, folder / "environment")
        (outside := folder / "outside").mkdir()
        use(commands, outside)
        uninstall(commands, outside)
    print(f"{wheel.name}: built, installed alone, used outside the checkout, and uninstalled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
