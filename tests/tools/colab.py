"""gpumagic where Colab's and Kaggle's versions are installed: ``make test-colab``.

What ``tests/colab.txt`` names stays as it is, pip has nothing to complain of, and all tests pass;
they execute the demo notebooks, too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tests.support.device import ROOT

VERSIONS = ROOT / "tests" / "colab.txt"
#: debugpy, which ipykernel 6 imports, warns of Python's own frozen modules.
QUIET = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
#: jupyter-client 7 leaves the event loop of a thread open, which some later test would notice.
_NOT_CLOSED = "ignore:unclosed:ResourceWarning"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def pinned() -> dict[str, str]:
    """Return the versions that Colab has, by package."""
    lines = VERSIONS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and line[0] != "#")


def changed() -> list[str]:
    """Return what is installed in another version than Colab's."""
    return [
        f"{name} {version(name)} is installed, Colab has {wanted}"
        for name, wanted in pinned().items()
        if version(name) != wanted
    ]


def upgraded() -> list[str]:
    """Return what ``pip install .`` would install here beside gpumagic."""
    command = [*_PIP, "install", "--quiet", "--dry-run", "--report=-", str(ROOT)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [each["metadata"]["name"] for each in json.loads(said)["install"]]
    return [f"'pip install .' would install {name}" for name in names if name != "gpumagic"]


def broken() -> list[str]:
    """Return what ``pip check`` says of gpumagic."""
    said = subprocess.run([*_PIP, "check"], capture_output=True, text=True, check=False).stdout
    return [line for line in said.splitlines() if re.search(r"\bgpumagic\b", line)]


def tests(arguments: Sequence[str]) -> int:
    """Run the tests, or those that are named."""
    command = [sys.executable, "-m", "tests", "-W", _NOT_CLOSED, *arguments]
    return subprocess.call(command, cwd=ROOT, env={**os.environ, **QUIET})


def main() -> int:
    wrong = [*changed(), *upgraded(), *broken()]
    print(*wrong or ["Nothing of Colab's is changed."], sep="\n", flush=True)
    return tests(sys.argv[1:]) or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
