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
    """

    def __init__(self, folder: Path, torch: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(0).lower()).strip("-")
        self.file = folder / f"{time.strftime('%Y-%m-%d-%H%M%S', time.gmtime())}-{name}.json"
        self._found: dict[str, Any] = {**_machine(torch), "figures": {}, "tests": {}}

    def note(self, kind: str, name: str, value: Any) -> None:
        """A line of the record, among the ``figures`` or the ``tests``."""
        self._found[kind][name] = value
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self._found, indent=1, default=str) + "\n", encoding="utf-8")
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
