"""``--save FILE`` and ``--against FILE``: results in files, compared with new ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from gpumagic.errors import RegressionError, SpecError
from gpumagic.magics.file_names import expanded
from gpumagic.magics.output import show
from gpumagic.memory import regression as memory
from gpumagic.results import Comparison, CudaTiming, MemoryDelta
from gpumagic.results.conditions import differences
from gpumagic.results.json_file import MOST
from gpumagic.results.memory_comparison import MemoryComparison
from gpumagic.results.stored import load
from gpumagic.system.paths import output_path
from gpumagic.timing import regression as times
from gpumagic.timing.comparison import compare


class Guard(NamedTuple):
    """How one kind of results is compared with a stored one."""

    kind: type[CudaTiming] | type[MemoryDelta]
    #: ``compare(result, stored)`` returns what is shown.
    compare: Callable[[Any, Any], Comparison | MemoryComparison]
    #: ``check(compared, fail_above)`` raises a `RegressionError` if it is worse than allowed, and
    #: returns why that is not known, if so.
    check: Callable[[Any, float], str | None]


#: What the two timings are called in the comparison.
BEFORE, NOW = "stored", "now"


def _compare_times(now: CudaTiming, before: CudaTiming) -> Comparison:
    return compare({BEFORE: before, NOW: now})


#: Timings, and changes of GPU memory.
TIMES = Guard(CudaTiming, _compare_times, times.check)
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
            repeat = getattr(options, "repeat", None) or 0
            if repeat > MOST:
                raise SpecError(f"--save: {repeat:,} repeats; at most {MOST:,} are stored")
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
        elif options.fail_above is not None or options.strict:
            raise SpecError("--fail-above and --strict go with --against FILE")

    def finish(self, shell: Any, result: CudaTiming | MemoryDelta | None) -> None:
        """Write and compare the result, if there is a complete one.

        Raises:
            RegressionError: it is worse than allowed; or ``--strict``, and it was measured under
                other conditions (device, driver, torch, CUDA).
            SpecError: it cannot be compared, or has no figures to save.
        """
        __tracebackhide__ = True
        if result is None or result.partial:
            return
        if self.before is not None:
            self._finish_comparison(shell, result, self.before)
        # Last: what is worse than allowed must not take the place of what it is compared with.
        if self._target is not None:
            if isinstance(result, MemoryDelta) and result.error is not None:
                raise SpecError(f"--save: {result.error}: there are no figures to write to a file")
            result.save(self._target)

    def _finish_comparison(
        self, shell: Any, result: CudaTiming | MemoryDelta, before: CudaTiming | MemoryDelta
    ) -> None:
        """Show the comparison, then check it; under other conditions only with ``--strict``."""
        __tracebackhide__ = True
        options = self._options
        others = "; ".join(differences(result.conditions, before.conditions))
        problems = [f"other conditions than stored (--strict): {others}"] if others else []
        compared: Comparison | MemoryComparison | None = None
        try:
            compared = self._guard.compare(result, before)
        except SpecError as error:
            if not others:
                raise
            reason = str(error)
        unchecked = bool(others) and options.fail_above is not None and not options.strict
        note = f"measured under other conditions: {others}"
        if unchecked:
            note += "; --fail-above was not applied, --strict fails the cell then"
        if options.quiet:
            if unchecked:  # the cell passes unchecked
                show(shell, MemoryComparison(notes=(note,)))
        elif compared is None:
            show(shell, MemoryComparison(notes=(reason, note)))
        else:
            notes = (*compared.notes, note) if others else compared.notes
            show(shell, replace(compared, notes=notes))
        if others and not options.strict:
            return
        if compared is not None and options.fail_above is not None:
            try:
                unknown = self._guard.check(compared, options.fail_above)
                if unknown is not None:  # also with -q: the cell passes unchecked
                    show(shell, MemoryComparison(notes=(f"--fail-above: {unknown}",)))
            except (RegressionError, SpecError) as error:
                if not others:
                    raise
                problems.insert(0, str(error))
        if problems:
            raise RegressionError("; ".join(problems))
