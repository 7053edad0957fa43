"""What a session has turned on, turned on again in the process that replaces it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpumagic.cuda import driver
from gpumagic.cuda.pytorch import allocator
from gpumagic.magics.magic_state import state_of
from gpumagic.system import text
from gpumagic.system.shell import Shell


@dataclass(frozen=True)
class Session:
    """What is turned on: settings of gpumagic, and magics."""

    traits: Mapping[str, Any]
    timings: dict[str, Any]
    #: Name and line of each magic that turns on again what is on.
    lines: Sequence[tuple[str, str]]
    #: The modules that ``%aimport`` has named, to be reloaded and not to be.
    reloaded: tuple[dict[str, Any], dict[str, Any]]
    #: The flags of what ``from __future__ import`` has turned on for all cells below.
    compiled: int


def read(shell: Shell) -> Session:
    """Return what is on."""
    state, reloader = state_of(shell), _reloader(shell)
    reloads = ({}, {}) if reloader is None else (reloader.modules, reloader.skip_modules)
    return Session(
        traits=state.trait_values(config=True),
        timings=state.named_timings,
        lines=[*_modes(shell)],
        reloaded=(dict(reloads[0]), dict(reloads[1])),
        compiled=shell.compile.flags,
    )


def _modes(shell: Shell) -> Iterator[tuple[str, str]]:
    """Yield name and line of each magic that turns on again what is on."""
    timing, memory = state_of(shell).cell_timing, state_of(shell).cell_memory
    if timing is not None and timing.watching:
        yield "cudatime", f"on -q --above {timing.above:.9f}s"
    if memory is not None and memory.watching:
        yield "gpumem", "on -q"
    limit = sys.modules.get("gpumagic.memory.limit")
    if limit is not None and (size := limit.LIMIT.size) is not None:
        typed = f"{size:%}" if isinstance(size, float) else f"{size}B"
        yield "gpumem", f"limit -q {typed}"
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline is not None and inline.flush_figures in shell.events.callbacks["post_execute"]:
        yield "matplotlib", "inline"
    if allocator.history_is_recorded():
        yield "gpumem", "record on -q"
    reloader = _reloader(shell)
    if reloader is not None and reloader.enabled:
        yield "autoreload", "2" if reloader.check_all else "1"


def restore(shell: Shell, found: Session) -> list[str]:
    """Turn on what was on; return a note for what could not be."""
    state, notes = state_of(shell), []
    for name, value in found.traits.items():
        setattr(state, name, value)
    state.named_timings = found.timings
    shell.compile.flags |= found.compiled
    for name, line in found.lines:
        try:
            if line.startswith("record") and not driver.is_initialized():
                raise RuntimeError("CUDA has not started")
            shell.run_line_magic(name, line)
        except Exception as error:  # there is no GPU any more
            notes.append(f"Not on again: %{name} {line.split()[0]} ({text.reason(error)}).")
    reloader = _reloader(shell)
    if reloader is not None:
        reloader.modules, reloader.skip_modules = found.reloaded
    return notes


def _reloader(shell: Shell) -> Any:
    """Return what reloads modules for ``%autoreload``; None if that is not loaded."""
    return getattr(shell.magics_manager.registry.get("AutoreloadMagics"), "_reloader", None)
