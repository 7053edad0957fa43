"""In the new process: bind the variables that the old one has written."""

from __future__ import annotations

import builtins
import linecache
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from gpumagic.restart.variables import settings
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.unpickler import Unpickler
from gpumagic.system import text
from gpumagic.system.shell import Shell


@dataclass(frozen=True)
class Restored:
    """What has come of the variables of a manifest."""

    manifest: Manifest
    #: Those that came back; and of these, those with tensors that came back to a GPU.
    done: Sequence[str]
    on_gpu: Sequence[str]
    #: Why the others did not.
    failed: Mapping[str, str]
    #: What is said of some: words, and the names behind them.
    notes: Mapping[str, Sequence[str]]


def restore(file: IO[bytes], shell: Shell, manifest: Manifest) -> Restored:
    """Bind the variables in the notebook; return what has come of them."""
    for name, lines in manifest.sources.items():  # None: it is never looked for on the disk
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    getattr(shell.compile, "_filename_map", {}).update(manifest.cells)
    devices, loader = manifest.devices, Unpickler(manifest, file, shell, is_trial=False)
    done, on_gpu, failed = list[str](), list[str](), {**manifest.failed}
    names = iter(manifest.types)
    try:
        for name in names:
            arrived = devices.arrived
            loader.bind(name)
            if name not in manifest.contents:
                done.append(name)
                if devices.arrived > arrived:
                    on_gpu.append(name)
    except Exception as error:  # though the trial has loaded it
        failed[name] = text.named(error)
        failed.update(dict.fromkeys(names, f"it was to be loaded after {name}"))
    # torch would check them when it next loads anything, and until then keep them.
    getattr(sys.modules.get("torch._utils"), "_sparse_tensors_to_validate", []).clear()
    shell.user_ns["__builtins__"] = builtins  # cloudpickle puts the dictionary there
    # At last: what is imported may draw random numbers.
    notes = {**manifest.notes, **settings.restore(shell, manifest.settings, devices.now)}
    return Restored(manifest, done, on_gpu, failed, notes)
