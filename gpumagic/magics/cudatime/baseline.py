"""``%%cudatime --save FILE`` and ``--against FILE``: results in files, compared with new ones."""

from __future__ import annotations

import argparse

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import excess
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.magics.output import show
from gpumagic.magics.parsing import Parser
from gpumagic.results import CudaTiming
from gpumagic.results.stored import load
from gpumagic.system.paths import output_path
from gpumagic.timing.regression import against


def add_options(parser: Parser) -> None:
    """Add ``--save``, ``--against``, ``--fail-above`` and ``--strict``."""
    group = parser.add_argument_group("results in files")
    group.add_argument("--save", metavar="FILE", help="write the result to FILE, as JSON")
    group.add_argument(
        "--against", metavar="FILE", help="compare with the result that --save wrote to FILE"
    )
    group.add_argument(
        "--fail-above",
        metavar="PERCENT",
        type=excess,
        help="with --against: fail the cell with a RegressionError if it takes that much longer, "
        "beyond the noise (10%%); not where device, driver or torch are others than in FILE",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="with --against: fail also where device, driver or torch are others",
    )


class Baseline:
    """The files of one ``%cudatime``: read before the code runs, written after it.

    Raises:
        SpecError: a file that cannot be read or written, or options that do not fit together.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._target = None if options.save is None else output_path(options.save)
        self._before: CudaTiming | None = None
        if options.against is not None:
            before = load(options.against)
            if not isinstance(before, CudaTiming):
                raise SpecError(f"--against: {options.against} holds no times, but GPU memory")
            self._before = before
        elif options.fail_above is not None or options.strict:
            raise SpecError("--fail-above and --strict go with --against FILE")

    def finish(self, delivery: Delivery) -> None:
        """Write and compare the result, if there is a complete one.

        Raises:
            RegressionError: it is slower than allowed.
            SpecError: nothing can be said of it.
        """
        __tracebackhide__ = True
        result = delivery.result
        if result is None or result.partial:
            return
        if self._target is not None:
            result.save(self._target)
        if self._before is not None:
            options = self._options
            compared = against(
                result, self._before, fail_above=options.fail_above, strict=options.strict
            )
            if not options.quiet:
                show(delivery.shell, compared)
