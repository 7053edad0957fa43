"""All tests: those that start many processes in two runs side by side, those that time alone.

Most tests wait for a fresh kernel to import torch, on one core. Every run of pytest has virtual
GPUs of its own, so two do not meet. Arguments go to pytest; with a path, it is just that.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.kernels import ROOT

TESTS = ROOT / "tests"
#: Clocks are compared here, which a busy machine would blur.
_ALONE = {"timing", "virtual_gpu", "hardware"}
#: About half of the rest, by the time that they take.
_FIRST = {"gpu", "gate", "restart", "doctor", "demo", "frontends"}

#: pytest's exit codes: all passed; nothing to run.
_FINE = {0, 5}


def parts() -> dict[str, list[str]]:
    """What each run gets; between them, every test."""
    found: dict[str, list[str]] = {"first": [], "second": [], "alone": []}
    for path in sorted(TESTS.iterdir()):
        if path.is_dir() and not any(path.glob("test_*.py")):
            continue
        if path.is_file() and not path.name.startswith("test_"):
            continue
        part = "alone" if path.name in _ALONE else "first" if path.name in _FIRST else "second"
        found[part].append(str(path.relative_to(ROOT)))
    return found


def _start(name: str, paths: Sequence[str], arguments: Sequence[str]) -> subprocess.Popen[str]:
    """A run of pytest that writes to a file; what failed is remembered apart from the others'."""
    folder = ROOT / "build" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={folder / name}"]
    with (folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(
            [*command, *arguments, *paths],
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )


def _end(name: str, run: subprocess.Popen[str], started: float) -> bool:
    """Wait for a run, and show what it said; whether it went well."""
    code = run.wait()
    print(f"== tests, {name}: {time.monotonic() - started:.0f} s", flush=True)
    print((ROOT / "build" / "tests" / f"{name}.log").read_text(errors="replace"), flush=True)
    return code in _FINE


def main(arguments: Sequence[str]) -> int:
    if any(Path(word.split("::")[0]).exists() for word in arguments):
        return subprocess.call([sys.executable, "-m", "pytest", *arguments], cwd=ROOT)
    work = parts()
    print("Two runs side by side, then one alone; to follow: tail -f build/tests/*.log", flush=True)
    started = time.monotonic()
    together = {name: _start(name, work[name], arguments) for name in ("first", "second")}
    well = [_end(name, run, started) for name, run in together.items()]
    started = time.monotonic()
    well.append(_end("alone", _start("alone", work["alone"], arguments), started))
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
