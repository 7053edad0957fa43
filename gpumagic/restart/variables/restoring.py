"""In the new process: bind the variables that the old one has written."""

from __future__ import annotations

import builtins
import linecache
import sys
from dataclasses import replace
from typing import IO

from gpumagic.restart.variables import settings
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.unpickler import Unpickler
from gpumagic.system import text
from gpumagic.system.shell import Shell


def restore(file: IO[bytes], shell: Shell, manifest: Manifest) -> Manifest:
    """Bind the variables in the notebook; return what has come of them."""
    for name, lines in manifest.sources.items():  # None: it is never looked for on the disk
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    getattr(shell.compile, "_filename_map", {}).update(manifest.cells)
    devices, loader = manifest.devices, Unpickler(manifest, file.fileno(), shell, is_trial=False)
    done, on_gpu, failed, why = list[str](), list[str](), dict(manifest.failed), ""
    for name in manifest.types:
        arrived = devices.arrived
        try:
            if not why:
                loader.bind(name)
        except Exception as error:  # though the trial has loaded it
            failed[name], why = text.named(error), f"it was to be loaded after {name}"
        if why:
            failed.setdefault(name, why)
        elif name not in manifest.contents:
            done.append(name)
            if devices.arrived > arrived:
                on_gpu.append(name)
    # torch would check them when it next loads anything, and until then keep them.
    getattr(sys.modules.get("torch._utils"), "_sparse_tensors_to_validate", []).clear()
    shell.user_ns["__builtins__"] = builtins  # cloudpickle puts the dictionary there
    # At last: what is imported may draw random numbers.
    notes = {**manifest.notes, **settings.restore(shell, manifest.settings, devices.now)}
    return replace(manifest, done=done, failed=failed, notes=notes, on_gpu=on_gpu)
