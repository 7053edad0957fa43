"""A real JupyterLab or Notebook 7, in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import ports
from tests.support.device import ROOT

#: The folder of screenshots, for inspection.
PICTURES = ROOT / "build" / "frontends"


def browser() -> str | None:
    """The system's Chromium or Chrome."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


def missing() -> str | None:
    """What this machine lacks for these tests, if anything."""
    from importlib.util import find_spec

    if browser() is None:
        return "no Chromium or Chrome on this machine (Debian: apt install chromium)"
    for package in ("playwright", "jupyterlab", "notebook"):
        if find_spec(package) is None:
            return f"{package} is not installed (pip install --group frontends)"
    return None


@dataclass(frozen=True)
class Server:
    """A running server of JupyterLab and Notebook 7."""

    address: str
    folder: Path
    environment: Mapping[str, str]

    def add(self, name: str, cells: Sequence[str], application: str = "lab") -> str:
        """Write a notebook into a folder of that name; its address in ``lab`` or ``notebook``."""
        (self.folder / name).mkdir()
        write_notebook(self.folder / name / "book.ipynb", cells)
        PICTURES.mkdir(parents=True, exist_ok=True)
        # A workspace of its own, else JupyterLab opens what was open last.
        where = f"lab/workspaces/{name}/tree" if application == "lab" else "notebooks"
        return f"{self.address}/{where}/{name}/book.ipynb"


@contextmanager
def server(folder: Path, environment: Mapping[str, str]) -> Iterator[Server]:
    """A running server over ``folder``. Loopback only."""
    (port,) = ports.take(1)
    command = [
        sys.executable,
        *("-m", "jupyterlab"),
        *("--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"),
        *("--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.password="),
        f"--ServerApp.root_dir={folder}",
        # No extension manager: nothing asks the network.
        "--LabApp.extension_manager=readonly",
        # Tests ask the page for its kernel's state.
        "--LabApp.expose_app_in_browser=True",
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ]
    quiet = {"JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings"), "JUPYTER_PLATFORM_DIRS": "1"}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, env={**environment, **quiet}, cwd=folder, stdout=log, stderr=log
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_up(address, process, folder / "server.log")
            yield Server(address, folder, environment)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_up(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            with urllib.request.urlopen(f"{address}/api/status", timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{log.read_text()}") from None
            time.sleep(0.2)


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    import nbformat  # takes a second of CPU time to import

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    nbformat.write(book, path)


def choose_theme(folder: Path, theme: str) -> None:
    """``JupyterLab Light`` or ``JupyterLab Dark``, for the next page that is opened."""
    settings = {
        "apputils-extension/themes": {"theme": theme, "adaptive-theme": False},
        # No question about news in the picture, and nothing asks the network.
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        # No question which kernel, though the notebook says so.
        "notebook-extension/tracker": {"autoStartDefault": True},
    }
    for name, values in settings.items():
        path = folder / ".settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


@contextmanager
def page(width: int = 1280, height: int = 1600) -> Iterator[Any]:
    """A page in a fresh headless browser, with scroll bars where a user has them."""
    from playwright.sync_api import sync_playwright

    options = "--no-sandbox --disable-gpu --disable-quic --disable-sync --no-first-run"
    options += " --disable-background-networking --disable-component-update"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser(),
            args=options.split(),
            headless=True,
            ignore_default_args=["--hide-scrollbars"],
        )
        try:
            yield chromium.new_page(viewport={"width": width, "height": height})
        finally:
            chromium.close()
