"""Show a timing, store it in a variable and among the named results, and return it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.compile import cell_of
from gpumagic.magics import terminal
from gpumagic.magics.cudatime import named_results
from gpumagic.magics.output import hand_over
from gpumagic.results import CudaTiming
from gpumagic.results.compilation import Compilation, GraphBreak
from gpumagic.system import text


class Delivery:
    """Shows and stores the result of one ``%cudatime`` as its options say."""

    def __init__(self, magics: Any, options: argparse.Namespace) -> None:
        self.magics = magics
        self.shell = magics.shell
        self.options = options
        #: None until there is a result.
        self.result: CudaTiming | None = None

    @property
    def returned(self) -> CudaTiming | None:
        """What the magic returns: the result with ``-o``."""
        return self.result if self.options.output else None

    def deliver(self, result: CudaTiming) -> None:
        """Show ``result``, and store it where the options say."""
        result = replace(
            result,
            compiled=tuple(map(self._compiled_in_cell, result.compiled)),
            graph_breaks=tuple(map(self._broken_in_cell, result.graph_breaks)),
            show_rows=self.options.rows,
        )
        self.result = result
        named_results.store(self.magics, self.options.name, result)
        hand_over(self.shell, result, self.options)

    def deliver_repeats(self, result: CudaTiming | None) -> None:
        """Deliver the result of the complete repeats, or say that there is none."""
        if result is not None:
            self.deliver(result)
        elif not self.options.quiet:
            terminal.write_line("%cudatime: stopped before the first repeat was complete")

    def _compiled_in_cell(self, each: Compilation) -> Compilation:
        """Return a compilation with ``In[5]`` for the files of cells."""
        return replace(
            each,
            file=self._named_file(each.file),
            failed_file=self._named_file(each.failed_file),
            reason_file=self._named_file(each.reason_file),
        )

    def _broken_in_cell(self, each: GraphBreak) -> GraphBreak:
        """Return a graph break with ``In[5]`` for the file of a cell."""
        return replace(each, file=self._named_file(each.file))

    def _named_file(self, file: str | None) -> str | None:
        cell = None if file is None else cell_of(self.shell, file)
        return file if cell is None else f"In[{cell}]"

    def add(self, *notes: str, **fields: Any) -> None:
        """Add notes to the result and replace fields, wherever it is stored. Shows nothing."""
        assert self.result is not None
        self.result = replace(self.result, notes=(*self.result.notes, *notes), **fields)
        named_results.store(self.magics, self.options.name, self.result)
        if self.options.variable:
            self.shell.user_ns[self.options.variable] = self.result


@contextmanager
def print_failure(what: str = "the times") -> Iterator[None]:
    """Print a failure of gpumagic in one line: the code's value or exception stays."""
    try:
        yield
    except Exception as failure:
        terminal.write_line(f"%cudatime: cannot show {what} ({text.named(failure)})")
