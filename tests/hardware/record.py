"""The record of a run on real hardware: one JSON file."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Figure = Callable[[str, Any], None]


class Record:
    """Figures, and what became of each test, in a file that is written anew with each of them.

    So a machine that is taken away, or a command that is killed, leaves what was found until then.
    ``folder`` is None where nothing is to be kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._machine: dict[str, Any] = {}
        self._figures: dict[str, Any] = {}
        self._tests: dict[str, str] = {}
        #: The file, as soon as there is one.
        self.file: Path | None = None

    def begin(self, torch: Any) -> None:
        """Note the machine; before that nothing is written."""
        if self._folder is None:
            return
        self._machine = _machine(torch)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(0).lower()).strip("-")
        self.file = self._folder / f"{time.strftime('%Y-%m-%d-%H%M%S', time.gmtime())}-{name}.json"

    def figure(self, name: str, value: Any) -> None:
        """A line of the record."""
        self._figures[name] = value
        self._write()

    def outcome(self, test: str, phase: str, outcome: str) -> None:
        """Note the outcome of a test: of its call, its setup or its teardown."""
        if phase != "call" and outcome == "failed":
            earlier = self._tests.get(test)
            outcome = f"{earlier}, " if earlier else ""
            outcome += f"error in {phase}"
        self._tests[test] = outcome
        self._write()

    def _write(self) -> None:
        if self.file is None:
            return
        record = {**self._machine, "figures": self._figures, "tests": self._tests}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
        part.replace(self.file)  # never half a file


def _machine(torch: Any) -> dict[str, Any]:
    import gpumagic

    table = gpumagic.devices(processes=False)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "devices": [f"{d.name}, {d.compute_capability}, {d.memory_total}" for d in table],
        "driver": table.driver_version,
        "driver's CUDA": table.cuda_version,
        "torch": torch.__version__,
        "torch's CUDA": torch.version.cuda,
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": {name: version(name) for name in ("ipython", "ipykernel", "nvidia-ml-py")},
    }
