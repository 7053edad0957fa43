"""``--save FILE`` and ``--against FILE``: results in files, compared with new ones."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpumagic.errors import RegressionError, SpecError
from gpumagic.magics.argument_types import excess
from gpumagic.magics.output import show
from gpumagic.magics.parsing import Parser
from gpumagic.results import Comparison, CudaTiming, MemoryDelta
from gpumagic.results.conditions import differences
from gpumagic.results.memory_comparison import MemoryComparison
from gpumagic.results.stored import load
from gpumagic.system.paths import output_path

#: The options of `add_options`.
OPTIONS = {"--save", "--against", "--fail-above", "--strict"}


def add_options(parser: Parser, fails: str) -> None:
    """Add ``--save``, ``--against``, ``--fail-above`` and ``--strict``; ``fails`` says at what."""
    group = parser.add_argument_group("results in files")
    group.add_argument("--save", metavar="FILE", help="write the result to FILE, as JSON")
    group.add_argument(
        "--against", metavar="FILE", help="compare with the result that --save wrote to FILE"
    )
    group.add_argument(
        "--fail-above",
        metavar="PERCENT",
        type=excess,
        help=f"with --against: fail the cell with a RegressionError if {fails} (10%%); not where "
        "device, driver or torch are others than in FILE",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="with --against: fail also where device, driver or torch are others",
    )


class Baseline:
    """The files of one cell: read before it runs, written after it.

    ``compare(result, stored, fail_above)`` returns what is shown.

    Raises:
        SpecError: a file that cannot be read or written, or options that do not fit together.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        kind: type[CudaTiming] | type[MemoryDelta],
        compare: Callable[[Any, Any, float | None], Comparison | MemoryComparison],
    ) -> None:
        self._options = options
        self._compare = compare
        self._target = None if options.save is None else output_path(options.save)
        #: The stored result.
        self.before: CudaTiming | MemoryDelta | None = None
        if options.against is not None:
            self.before = load(options.against)
            if not isinstance(self.before, kind):
                found = "GPU memory" if isinstance(self.before, MemoryDelta) else "times"
                raise SpecError(f"--against: {options.against} holds another result: {found}")
        elif options.fail_above is not None or options.strict:
            raise SpecError("--fail-above and --strict go with --against FILE")

    def finish(self, shell: Any, result: CudaTiming | MemoryDelta | None) -> None:
        """Write and compare the result, if there is a complete one.

        Raises:
            RegressionError: it is worse than allowed; or ``--strict``, and it was measured under
                other conditions (device, driver, torch, CUDA).
            SpecError: it cannot be compared.
        """
        __tracebackhide__ = True
        if result is None or result.partial:
            return
        if self.before is not None:
            compared = self._compared(result, self.before)
            if not self._options.quiet:
                show(shell, compared)
        # Last: what is worse than allowed must not take the place of what it is compared with.
        if self._target is not None:
            result.save(self._target)

    def _compared(
        self, result: CudaTiming | MemoryDelta, before: CudaTiming | MemoryDelta
    ) -> Comparison | MemoryComparison:
        """Compare; under other conditions ``--fail-above`` is checked only with ``--strict``."""
        __tracebackhide__ = True
        options = self._options
        others = "; ".join(differences(result.conditions, before.conditions))
        fail_above = None if others and not options.strict else options.fail_above
        compared = self._compare(result, before, fail_above)
        if not others:
            return compared
        if options.strict:
            raise RegressionError(f"other conditions than stored (--strict): {others}")
        return replace(
            compared, notes=(*compared.notes, f"measured under other conditions: {others}")
        )
