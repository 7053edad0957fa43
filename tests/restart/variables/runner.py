"""Keep the variables of every case in one process, and restore them in a second one.

``python -m tests.restart.variables.runner save|load FOLDER`` is either; `run_all` starts both. Two
processes for all cases, since each imports torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from typing import IO, Any

from gpumagic.restart import variables as keep
from tests.restart.variables.cases import CASES, Case
from tests.support import forks
from tests.support.kernels import python_environment


def new_namespace() -> dict[str, Any]:
    """A notebook's, before its first cell."""
    return {"__name__": "__main__", "__builtins__": __builtins__}


def save_all(folder: Path, only: list[str]) -> None:
    """Run each case's cell and keep what it asks for; results go to a file for each case."""
    for case in CASES:
        if only and case.name not in only:
            continue
        found: dict[str, Any] = {}
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found = _save(case, folder)
        except Exception:
            found = {"error": traceback.format_exc()}
        (folder / f"{case.name}.json").write_text(json.dumps(found))


def _save(case: Case, folder: Path) -> dict[str, Any]:
    namespace = new_namespace()
    file = f"<cell {case.name}>"
    linecache.cache[file] = (len(case.cell), None, case.cell.splitlines(keepends=True), file)
    exec(compile(case.cell, file, "exec", dont_inherit=True), namespace)
    variables = {name: value for name, value in namespace.items() if not name.startswith("__")}
    asked = [*variables] if case.keep == "all" else case.keep.split()
    chosen = keep.plan(namespace, asked, variables, sources=[case.cell])
    paths = iter([folder / f"{case.name}.variables", folder / f"{case.name}.tensors"])

    def create(_: str) -> IO[bytes]:
        return next(paths).open("x+b")

    keep.close(keep.write(chosen, create))
    return {
        "failures": chosen.failures,
        "without": {name: sorted(what) for name, what in chosen.omitted.items()},
    }


def load_all(folder: Path) -> None:
    """Bring back what `save_all` kept, and check it."""
    for case in CASES:
        result = folder / f"{case.name}.json"
        if not result.exists():
            continue
        found = json.loads(result.read_text())
        if "error" not in found:
            try:
                found["wrong"] = _load(case, folder)
            except Exception:
                found["error"] = traceback.format_exc()
        result.write_text(json.dumps(found))


def _load(case: Case, folder: Path) -> list[str]:
    namespace = new_namespace()
    paths = [folder / f"{case.name}.variables", folder / f"{case.name}.tensors"]
    files = [path.open("rb") for path in paths if path.exists()]
    restored = keep.restore(
        namespace, files, existing={}, location="cpu", device_now=lambda _: "cpu"
    )
    keep.close(files)
    wrong = [f"{name}: {why}" for name, why in restored.failures.items()]
    wrong += [f"import {name}: {why}" for name, why in restored.not_imported.items()]
    wrong += [f"not as one graph: {restored.separate_because}"] if restored.separate_because else []
    for check in case.checks:
        try:
            if not _holds(check, namespace):
                wrong.append(check)
        except Exception as error:
            wrong.append(f"{check}: {type(error).__name__}: {error}")
    return wrong


def _holds(check: str, namespace: dict[str, Any]) -> bool:
    """The value of the last line, an expression; those before it are run."""
    *before, last = check.split("\n")
    exec("\n".join(before), namespace)
    return bool(eval(last, namespace))


def run_all(folder: Path, only: list[str]) -> None:
    """Both, in two processes."""
    for what in ("save", "load"):
        command = [sys.executable, "-m", "tests.restart.variables.runner", what, str(folder), *only]
        forks.run(command, env=python_environment(os.environ)).check_returncode()


def main(what: str, folder: str, *only: str) -> None:
    if what == "save":
        save_all(Path(folder), [*only])
    else:
        load_all(Path(folder))


if __name__ == "__main__":
    # Not as __main__, which is the notebook's.
    from tests.restart.variables import runner

    runner.main(*sys.argv[1:])
