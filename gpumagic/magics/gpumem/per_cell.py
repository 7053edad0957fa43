"""``%gpumem on``, ``off``, ``log`` and ``plot``: GPU memory over the cells of the session."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.extension import of as extension_of
from gpumagic.magics.output import hand_over, show
from gpumagic.magics.parsing import Parser, add_result_options
from gpumagic.memory.per_cell import EveryCell
from gpumagic.results import CellLog, CellMemory
from gpumagic.results.base import as_text
from gpumagic.system.paths import output_path
from gpumagic.system.text import plural

_SAYS = {
    "on": "After every cell that changed GPU memory a line with what it did; '%gpumem off' ends "
    "that.",
    "off": "No more lines after cells; '%gpumem log' shows the previous ones.",
}


def parser(verb: str) -> Parser:
    """Return the parser of the options of ``%gpumem VERB``."""
    made = Parser(f"%gpumem {verb}")
    if verb == "plot":
        made.add_argument("file", nargs="?", help="write the picture there (.png, .svg, .pdf)")
    add_result_options(made)
    return made


def run(verb: str, magics: Any, options: argparse.Namespace, silent: bool) -> Any:
    """Run the verb.

    Raises:
        SpecError: there is nothing to show, or no way to draw it.
    """
    every_cell = of(magics.shell)
    quiet = options.quiet or silent
    if verb in _SAYS:
        was = every_cell.watching
        every_cell.on() if verb == "on" else every_cell.off()
        if not quiet:
            print(_SAYS[verb] if was != every_cell.watching else f"It is {verb} already.")
        return hand_over(magics.shell, every_cell.log(), options, silent=True)
    log = every_cell.log()
    if verb == "plot":
        return _plot(magics.shell, log, options, quiet)
    return hand_over(magics.shell, log, options, silent=silent)


def of(shell: Any) -> EveryCell:
    """Return the automatic mode of a shell, made at the first call."""
    extension = extension_of(shell)
    if extension.cell_memory is None:
        extension.cell_memory = EveryCell(extension.hooks, lambda cell: _show_line(shell, cell))
    return extension.cell_memory


def _show_line(shell: Any, cell: CellMemory) -> None:
    """One dim line below the cell; nothing where quiet is the default."""
    if extension_of(shell).magics.quiet:
        return
    if hasattr(shell, "kernel") or not sys.stdout.isatty() or shell.colors.lower() == "nocolor":
        show(shell, cell)
        return
    print(as_text(cell, color=True))


def _plot(shell: Any, log: CellLog, options: argparse.Namespace, quiet: bool) -> Any:
    if not any(cell.devices for cell in log):
        raise SpecError("no cell has used GPU memory yet; '%gpumem on' begins to watch them")
    path = output_path(options.file) if options.file else None
    plot = log.plot()
    if path is not None:
        try:
            plot.save(path)
        except (OSError, ValueError) as error:  # no such folder; no such format
            raise SpecError(f"cannot write {path}: {error}") from None
    if not quiet:
        from IPython.display import display

        text = f"GPU memory over {plural(len(log), 'cell')}"
        if path is not None:
            print(f"{text}: written to {path}")
        else:
            hint = "" if hasattr(shell, "kernel") else "; '%gpumem plot FILE' writes it to a file"
            bundle, size = plot.bundle(f"{text}{hint}")
            display(bundle, raw=True, metadata=size)  # type: ignore[no-untyped-call]
    if options.variable:
        shell.user_ns[options.variable] = plot.figure
    return plot.figure if options.output else None
