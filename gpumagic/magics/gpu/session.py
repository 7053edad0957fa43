"""What a session has turned on, turned on again in the process that replaces it."""

from __future__ import annotations

import sys
from typing import Any

from gpumagic.cuda import driver, torch_cuda
from gpumagic.magics.shell_state import of
from gpumagic.system import text
from gpumagic.system.shell import Shell


def read(shell: Shell) -> dict[str, Any]:
    """Return the session's settings of gpumagic, and the magics that turn on what is on."""
    state = of(shell)
    return {
        "traits": state.trait_values(config=True),
        "timings": state.named_timings,
        "lines": [*_modes(shell)],
        "reloaded": _reloaded(shell),
        # What ``from __future__ import`` has turned on for all cells below.
        "compiled": shell.compile.flags,
    }


def _modes(shell: Shell) -> list[tuple[str, str]]:
    """Return name and line of each magic that turns on again what is on."""
    state, found = of(shell), list[tuple[str, str]]()
    timing, memory = state.cell_timing, state.cell_memory
    if timing is not None and timing.watching:
        found.append(("cudatime", f"on -q --above {timing.above:f}s"))
    if memory is not None and memory.watching:
        found.append(("gpumem", "on -q"))
    limit = sys.modules.get("gpumagic.memory.limit")
    if limit is not None and (size := limit.LIMIT.size) is not None:
        typed = f"{size:%}" if isinstance(size, float) else size
        found.append(("gpumem", f"limit -q {typed}"))
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline is not None and inline.flush_figures in shell.events.callbacks["post_execute"]:
        found.append(("matplotlib", "inline"))
    if torch_cuda.history_is_recorded():
        found.append(("gpumem", "record on -q"))
    reloader = _reloader(shell)
    if reloader is not None and reloader.enabled:
        found.append(("autoreload", "2" if reloader.check_all else "1"))
    return found


def restore(shell: Shell, found: dict[str, Any]) -> list[str]:
    """Turn on what was on; return a note for what could not be."""
    state, notes = of(shell), []
    for name, value in found["traits"].items():
        setattr(state, name, value)
    state.named_timings = found["timings"]
    shell.compile.flags |= found["compiled"]
    for name, line in found["lines"]:
        try:
            if line.startswith("record") and not driver.is_initialized():
                raise RuntimeError("CUDA has not started")
            shell.run_line_magic(name, line)
        except Exception as error:  # there is no GPU any more
            notes.append(f"Not on again: %{name} {line.split()[0]} ({text.reason(error)}).")
    reloader = _reloader(shell)
    if reloader is not None:
        reloader.modules, reloader.skip_modules = found["reloaded"]
    return notes


def _reloader(shell: Shell) -> Any:
    """Return what reloads modules for ``%autoreload``; None if that is not loaded."""
    return getattr(shell.magics_manager.registry.get("AutoreloadMagics"), "_reloader", None)


def _reloaded(shell: Shell) -> Any:
    """Return the modules that ``%aimport`` has named, to be reloaded and not to be."""
    reloader = _reloader(shell)
    return ({}, {}) if reloader is None else (dict(reloader.modules), dict(reloader.skip_modules))
