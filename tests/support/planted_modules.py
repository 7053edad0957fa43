"""A folder of modules, libraries and programs that must not be used: each records its use."""

from __future__ import annotations

import sys
from pathlib import Path

_OTHERS = """
gpumagic torch numpy pandas rich pynvml psutil IPython ipykernel ipykernel_launcher ipyparallel zmq
tornado traitlets jupyter_client jupyter_core cloudpickle matplotlib sitecustomize usercustomize
""".split()

#: Without these a Python does not start far enough to record anything.
_NEEDED = ("encodings", "codecs", "io", "abc")

#: Libraries that torch and gpumagic load. These files are none: to load one is a fatal error.
_LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libcudart.so",
    "libcudart.so.12",
    "libcudart.so.13",
    "libstdc++.so.6",
    "libcublas.so.12",
    "libcublas.so.13",
    "libgomp.so.1",
    "libc10.so",
)


class PlantedModules:
    """The folder, and what was used of it."""

    def __init__(self, parent: Path) -> None:
        self.folder = parent / "planted"
        self.folder.mkdir(exist_ok=True)
        self._log = parent / "used.txt"
        self._log.touch()
        names = {*sys.stdlib_module_names, *_OTHERS} - {*sys.builtin_module_names, *_NEEDED}
        for name in names:
            text = f"open({str(self._log)!r}, 'a').write({name!r} + '\\n')\n"
            (self.folder / f"{name}.py").write_text(f"{text}raise ImportError('planted')\n")
        for name in _LIBRARIES:
            (self.folder / name).write_text("planted")
        program = self.folder / "nvcc"
        program.write_text(f"#!/bin/sh\necho nvcc >> '{self._log}'\n")
        program.chmod(0o755)

    @property
    def used(self) -> list[str]:
        """The modules that were imported and the programs that were run."""
        return self._log.read_text().split()
