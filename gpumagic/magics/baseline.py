"""``--save FILE`` and ``--against FILE``: results in files, compared with new ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Generic, TypeVar

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.output import say, show
from gpumagic.memory import measurement as memory
from gpumagic.results.base import differences
from gpumagic.results.comparison import Comparison, MemoryComparison, load
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming
from gpumagic.system.paths import output_path
from gpumagic.timing import comparison as times

_Result = TypeVar("_Result", CudaTiming, MemoryDelta)


class Baseline(Generic[_Result]):
    """The files of one cell: read before it runs, written after it.

    Raises:
        SpecError: a file that cannot be read or written.
    """

    def __init__(self, shell: Any, options: argparse.Namespace, kind: type[_Result]) -> None:
        self._shell = shell
        self._options = options
        self._target: Path | None = None
        if options.save is not None:
            self._target = output_path(expanded(shell, options.save))
        #: The stored result.
        self.before: _Result | None = None
        if options.against is not None:
            before = load(expanded(shell, options.against))
            if not isinstance(before, kind):
                found = "GPU memory" if isinstance(before, MemoryDelta) else "times"
                raise SpecError(f"--against: {options.against} holds another result: {found}")
            if before.partial:
                raise SpecError(
                    f"--against: {options.against} holds the result of code that did not run to "
                    "its end; save it again"
                )
            self.before = before

    def finish(self, result: CudaTiming | MemoryDelta | None) -> None:
        """Write and compare the result, if there is a complete one.

        Raises:
            RegressionError: it is worse than allowed.
            SpecError: it cannot be compared, or has no figures to save.
        """
        if result is None or result.partial:
            return
        if self.before is not None:
            self._compare(result, self.before)
        # Last: what is worse than allowed must not take the place of what it is compared with.
        if self._target is not None:
            if isinstance(result, MemoryDelta) and result.error is not None:
                raise SpecError(f"--save: {result.error}: there are no figures to write to a file")
            result.save(self._target)

    def _compare(self, result: Any, before: Any) -> None:
        """Show the comparison, then check it; not what was measured under other conditions."""
        compared: Comparison | MemoryComparison
        if isinstance(result, CudaTiming):
            compared = times.compare({"stored": before, "now": result})
        else:
            compared = memory.against(result, before)
        if not self._options.quiet:
            show(self._shell, compared)
        allowed, unknown = self._options.fail_above, None
        if allowed is None:
            return
        if others := differences(result.conditions, before.conditions):
            unknown = f"other conditions than those stored: {'; '.join(others)}"
        elif isinstance(compared, Comparison):
            unknown = times.check(compared, compared[1], allowed)
        else:
            memory.check(compared, allowed)
        if unknown is not None:  # also with -q: the cell passes unchecked
            say(self._shell, f"--fail-above was not applied: {unknown}")
