"""The result of a cell or statement: shown and stored, written to a file, compared with one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpumagic.errors import SpecError
from gpumagic.magics.argument_types import expanded
from gpumagic.magics.output import hand_over, say, show, value_of
from gpumagic.magics.shell_state import Magics
from gpumagic.memory import measurement as memory
from gpumagic.results.base import differences
from gpumagic.results.comparison import Comparison, MemoryComparison, load
from gpumagic.results.memory import MemoryDelta
from gpumagic.results.timing import CudaTiming
from gpumagic.system import text
from gpumagic.system.paths import output_path
from gpumagic.system.shell import Shell
from gpumagic.timing import comparison as times


class Delivery:
    """The result of one line or cell, in the making, and what its options ask for.

    The files of ``--save`` and ``--against`` are checked and read before the code runs. ``kind`` is
    the kind of the results in them.

    Raises:
        SpecError: a file that cannot be read or written.
    """

    def __init__(
        self, magics: Magics, options: argparse.Namespace, kind: type[CudaTiming | MemoryDelta]
    ) -> None:
        self.shell = magics.shell
        self.options = options
        #: None until there is one.
        self.result: Any = None
        self._target: Path | None = None
        if options.save is not None:
            self._target = output_path(expanded(self.shell, options.save))
        #: The stored result.
        self.before: Any = None
        if options.against is not None:
            self.before = load(expanded(self.shell, options.against))
            if not isinstance(self.before, kind):
                found = "GPU memory" if isinstance(self.before, MemoryDelta) else "times"
                raise SpecError(f"--against: {options.against} holds another result: {found}")
            if self.before.partial:
                raise SpecError(
                    f"--against: {options.against} holds the result of code that did not run to "
                    "its end; save it again"
                )

    def keep(self, result: object) -> None:
        """Take the result of the run."""
        self.result = result

    def deliver(self) -> None:
        """Show the result, and store it; nothing if there is none."""
        if self.result is not None:
            with saying_failures(self.shell):
                hand_over(self.shell, self.result, self.options)

    def finish(self, value: object) -> Any:
        """Write and compare a complete result, and return what the magic returns.

        Raises:
            RegressionError: it is worse than allowed.
            SpecError: it cannot be compared, or has no figures to save.
        """
        complete = self.result is not None and not getattr(self.result, "partial", False)
        if complete and self.before is not None:
            self._compare(self.result, self.before)
        # Last: what is worse than allowed must not take the place of what it is compared with.
        if complete and self._target is not None:
            if isinstance(self.result, MemoryDelta) and self.result.error is not None:
                why = self.result.error
                raise SpecError(f"--save: {why}: there are no figures to write to a file")
            self.result.save(self._target)
        return value_of(value, self.result, self.options)

    def _compare(self, result: Any, before: Any) -> None:
        """Show the comparison, then check it; not what was measured under other conditions."""
        compared: Comparison | MemoryComparison
        if isinstance(result, CudaTiming):
            compared = times.compare({"stored": before, "now": result})
        else:
            compared = memory.against(result, before)
        if not self.options.quiet:
            show(self.shell, compared)
        allowed, unknown = self.options.fail_above, None
        if allowed is None:
            return
        if others := differences(result.conditions, before.conditions):
            unknown = f"other conditions than those stored: {'; '.join(others)}"
        elif isinstance(compared, Comparison):
            unknown = times.check(compared, compared[1], allowed)
        else:
            memory.check(compared, allowed)
        if unknown is not None:  # also with -q: the cell passes unchecked
            say(self.shell, f"--fail-above was not applied: {unknown}")


@contextmanager
def saying_failures(shell: Shell) -> Iterator[None]:
    """Say a failure of gpumagic in one line: the code's value or exception stays."""
    try:
        yield
    except Exception as failure:
        say(shell, f"gpumagic: cannot show the result ({text.named(failure)})")
