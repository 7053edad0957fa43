"""gpumagic where Colab's and Kaggle's versions are installed: ``make test-colab``.

What ``tests/colab.txt`` names stays as it is; pip, the first demo notebooks and the tests of what a
user sees have nothing to complain of.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.__main__ import SPREAD
from tests.support.device import ROOT

VERSIONS = ROOT / "tests" / "colab.txt"
#: What one user does in one notebook; the others are of many engines and many users.
NOTEBOOKS = ("01", "02", "03")
#: What drives kernels, notebooks and shells as a user does.
TESTS = ("tests/test_smoke.py", "tests/magics", "tests/restart")
#: IPython has no matchers for completion before 8.6.
LEFT_OUT = "--ignore-glob=*completion*"
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


def demo() -> list[str]:
    """Execute the notebooks on a virtual machine, and return what failed."""
    from nbclient.exceptions import CellExecutionError

    from tests.tools.demo.runner import execute, notebooks, virtual_machine

    machine, failed = virtual_machine(), []
    for path in (path for path in notebooks() if path.name.startswith(NOTEBOOKS)):
        try:
            execute(path, machine, timeout=1200)
            print(f"  {path.name}", flush=True)
        except CellExecutionError as error:
            failed.append(f"{path.name}: {error}")
    return failed


def tests(arguments: Sequence[str]) -> int:
    """Run the tests, or those that are named."""
    named = any(Path(word.split("::")[0]).exists() for word in arguments)
    spread = ("-n", str(2 * len(os.sched_getaffinity(0))), *SPREAD)
    which = () if named else (*TESTS, LEFT_OUT, *spread)
    return subprocess.call(
        [sys.executable, "-m", "pytest", "-W", _NOT_CLOSED, *which, *arguments], cwd=ROOT
    )


def main() -> int:
    arguments = sys.argv[1:]
    wrong = [*changed(), *upgraded(), *broken()]
    if not wrong:
        print("Nothing of Colab's is changed. Executing the demo notebooks:", flush=True)
        wrong = demo()
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return tests(arguments) or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
