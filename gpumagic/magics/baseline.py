"""``--save FILE`` and ``--against FILE``: results in files, compared with new ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.output import show
from gpumagic.memory import measurement as memory
from gpumagic.results.base import differences
from gpumagic.results.comparison import Comparison, MemoryComparison
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.stored import load
from gpumagic.results.timing import CudaTiming
from gpumagic.system.paths import output_path
from gpumagic.timing import comparison as times


class Guard(NamedTuple):
    """How one kind of results is compared with a stored one."""

    kind: type[CudaTiming] | type[MemoryDelta]
    #: ``compare(result, stored)`` returns what is shown.
    compare: Callable[[Any, Any], Comparison | MemoryComparison]
    #: ``check(compared, fail_above)`` raises a `RegressionError` if it is worse than allowed, and
    #: returns why that is not known, if so.
    check: Callable[[Any, float], str | None]


#: Timings, and changes of GPU memory.
TIMES = Guard(
    CudaTiming,
    lambda now, before: times.compare({"stored": before, "now": now}),
    lambda compared, fail_above: times.check(compared, compared[1], fail_above),
)
MEMORY = Guard(MemoryDelta, memory.against, memory.check)


class Baseline:
    """The files of one cell: read before it runs, written after it.

    Raises:
        SpecError: a file that cannot be read or written, or options that do not fit together.
    """

    def __init__(self, shell: Any, options: argparse.Namespace, guard: Guard) -> None:
        self._options = options
        self._guard = guard
        self._target: Path | None = None
        if options.save is not None:
            self._target = output_path(expanded(shell, options.save))
        #: The stored result.
        self.before: CudaTiming | MemoryDelta | None = None
        if options.against is not None:
            self.before = load(expanded(shell, options.against))
            if not isinstance(self.before, guard.kind):
                found = "GPU memory" if isinstance(self.before, MemoryDelta) else "times"
                raise SpecError(f"--against: {options.against} holds another result: {found}")
            if self.before.partial:
                raise SpecError(
                    f"--against: {options.against} holds the result of code that did not run to "
                    "its end; save it again"
                )
        elif options.fail_above is not None:
            raise SpecError("--fail-above goes with --against FILE")

    def finish(self, shell: Any, result: CudaTiming | MemoryDelta | None) -> None:
        """Write and compare the result, if there is a complete one.

        Raises:
            RegressionError: it is worse than allowed.
            SpecError: it cannot be compared, or has no figures to save.
        """
        __tracebackhide__ = True
        if result is None or result.partial:
            return
        if self.before is not None:
            self._compare(shell, result, self.before)
        # Last: what is worse than allowed must not take the place of what it is compared with.
        if self._target is not None:
            if isinstance(result, MemoryDelta) and result.error is not None:
                raise SpecError(f"--save: {result.error}: there are no figures to write to a file")
            result.save(self._target)

    def _compare(
        self, shell: Any, result: CudaTiming | MemoryDelta, before: CudaTiming | MemoryDelta
    ) -> None:
        """Show the comparison, then check it; not what was measured under other conditions."""
        __tracebackhide__ = True
        compared, allowed = self._guard.compare(result, before), self._options.fail_above
        if not self._options.quiet:
            show(shell, compared)
        others, unknown = "; ".join(differences(result.conditions, before.conditions)), None
        if others:
            unknown = f"other conditions than those stored: {others}"
            if allowed is None and isinstance(compared, Comparison):
                unknown = None  # its notes say it
        elif allowed is not None:
            unknown = self._guard.check(compared, allowed)
        # Also with -q: the cell passes unchecked.
        if unknown is not None and (allowed is not None or not self._options.quiet):
            prefix = "" if allowed is None else "--fail-above was not applied: "
            show(shell, MemoryComparison(notes=(f"{prefix}{unknown}",)))
