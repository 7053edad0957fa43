"""What a session has turned on, turned on again in the process that replaces it."""

from __future__ import annotations

import sys
from typing import Any

from gpumagic.magics.extension import of
from gpumagic.system import text


def capture(shell: Any) -> dict[str, Any]:
    """Return the session's settings of gpumagic, and the magics that turn on what is on."""
    extension = of(shell)
    return {
        "traits": extension.magics.trait_values(config=True),
        "timings": extension.named_timings,
        "lines": [*_lines(shell)],
    }


def _lines(shell: Any) -> list[tuple[str, str]]:
    """Return name and line of each magic that turns on again what is on."""
    extension, found = of(shell), list[tuple[str, str]]()
    timing, memory, parking = extension.cell_timing, extension.cell_memory, extension.parking
    if timing is not None and timing.watching:
        found.append(("cudatime", f"on -q --above {timing.above:f}s"))
    if memory is not None and memory.watching:
        found.append(("gpumem", "on -q"))
    if parking is not None and parking.after is not None:
        found.append(("gpumem", f"park -q --after {parking.after:f}s"))
    limit = sys.modules.get("gpumagic.memory.limit")
    if limit is not None and limit.LIMIT.size is not None:
        found.append(("gpumem", f"limit -q {limit.LIMIT.size}"))
    reloader = getattr(shell.magics_manager.registry.get("AutoreloadMagics"), "_reloader", None)
    if reloader is not None and reloader.enabled:
        found.append(("autoreload", "2" if reloader.check_all else "1"))
    return found


def restore(shell: Any, found: dict[str, Any]) -> list[str]:
    """Turn on what was on; return a note for what could not be."""
    extension, notes = of(shell), []
    for name, value in found["traits"].items():
        setattr(extension.magics, name, value)
    extension.named_timings = found["timings"]
    for name, line in found["lines"]:
        try:
            shell.run_line_magic(name, line)
        except Exception as error:  # there is no GPU any more
            notes.append(f"Not on again: %{name} {line.split()[0]} ({text.reason(error)}).")
    return notes
