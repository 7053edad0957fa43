"""A folder full of modules that nobody should import: each says so when somebody does."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

_OTHERS = """
gpumagic torch numpy pandas rich pynvml psutil IPython ipykernel ipykernel_launcher ipyparallel zmq
tornado traitlets jupyter_client jupyter_core cloudpickle matplotlib sitecustomize usercustomize
""".split()

#: Without these a Python does not even come to the point where a trap can say something.
_NEEDED = ("encodings", "codecs", "io", "abc")

#: Libraries that torch, the driver's and NVML's doors load: none of these is one, which is fatal.
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


class Traps:
    """The folder, and what was caught in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "traps"
        self.folder.mkdir()
        self._log = folder / "caught.txt"
        self._log.touch()
        names = {*sys.stdlib_module_names, *_OTHERS} - {*sys.builtin_module_names, *_NEEDED}
        for name in names:
            text = f"open({str(self._log)!r}, 'a').write({name!r} + '\\n')\n"
            (self.folder / f"{name}.py").write_text(f"{text}raise ImportError('a trap')\n")
        for name in _LIBRARIES:
            (self.folder / name).write_text("a trap")
        program = self.folder / "nvcc"
        program.write_text(f"#!/bin/sh\necho nvcc >> '{self._log}'\n")
        program.chmod(0o755)

    def keep(self, names: Iterable[str]) -> None:
        """Leave only the traps of these names."""
        for file in self.folder.glob("*.py"):
            if file.stem not in names:
                file.unlink()

    @property
    def caught(self) -> list[str]:
        """What was imported, or run."""
        return self._log.read_text().split()
