"""The result of code that was measured: shown, compared with a stored one, written to a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpumagic.errors import RegressionError, SpecError
from gpumagic.magics.delivery import hand_over, say, saying_failures, show, value_of
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.option_forms import BaselineOptions
from gpumagic.results.base import Result
from gpumagic.results.conditions import differences
from gpumagic.results.stored import load
from gpumagic.system.writing import output_path


class Outcome:
    """What the options of a line ask for once the ``result`` of its code is there.

    The files of ``--save`` and ``--against`` are checked and read before the code runs. ``kind`` is
    the class of the results, ``compare`` returns the comparison of two, and ``check`` raises where
    one is worse than ``--fail-above`` allows, or returns why that is not known.

    Raises:
        SpecError: a file that cannot be read or written.
    """

    def __init__(
        self,
        magics: MagicState,
        options: BaselineOptions,
        kind: type[Any],
        compare: Callable[[Any, Any], Any],
        check: Callable[[Any, float], str | None],
    ) -> None:
        self.magics, self.shell, self.options = magics, magics.shell, options
        self._compare, self._check = compare, check
        self._target = None if options.save is None else output_path(options.save)
        self.stored = None if options.against is None else self._read(options.against, kind)
        #: None until the code has run, and where gpumagic has failed.
        self.result: Any = None
        #: Whether the code ran to its end: without a result it is gpumagic that has failed.
        self.code_ended = False

    def _read(self, name: str, kind: type[Any]) -> Any:
        """Return the result in a file; where there is no such file, the result of that name."""
        named = self.magics.named_timings.get(name)
        stored: Any = load(name) if named is None or Path(name).is_file() else named
        if not isinstance(stored, kind):
            found = f"{type(stored).__name__}, not a {kind.__name__}"
            raise SpecError(f"--against: {name} holds another result: a {found}")
        if stored.partial:
            unfinished = "the result of code that did not run to its end"
            raise SpecError(f"--against: {name} holds {unfinished}; save it again")
        return stored

    @property
    def is_complete(self) -> bool:
        """Whether there is the result of code that ran to its end."""
        return self.result is not None and not getattr(self.result, "partial", False)

    def deliver(self, *, silent: bool = False) -> None:
        """Show the result, and store it, if there is one."""
        if self.result is not None and not silent:
            with saying_failures(self.shell):
                hand_over(self.shell, self.result, self.options)
        if not self.is_complete:
            failed = self.code_ended and self.result is None
            why = "gpumagic has no result of it" if failed else "the code did not run to its end"
            self._say_not_written(why)

    def finish(self, value: object) -> Any:
        """Compare and write a complete result; return what the magic returns, by the code's value.

        Raises:
            RegressionError: it is worse than allowed.
            SpecError: it cannot be compared, or has no figures to save.
        """
        if self.is_complete:
            try:
                self._judge()
            except RegressionError:
                # It must not take the place of what it is compared with.
                self._say_not_written("--fail-above failed")
                raise
            if self._target is not None:
                if why := getattr(self.result, "error", None):
                    raise SpecError(f"--save: {why}: there are no figures to write to a file")
                self.result.save(self._target)
                self.say(f"--save: written to {self.options.save}")
        return value_of(value, self.result, self.options)

    def say(self, line: str) -> None:
        """Show a line; nothing for ``-q``."""
        say(self.shell, line, quiet=self.options.quiet)

    def _say_not_written(self, why: str) -> None:
        if self._target is not None:
            self.say(f"--save: {self.options.save} is not written: {why}")

    def _judge(self) -> None:
        """Show the comparison, then check it; not what was measured under other conditions."""
        if self.stored is None:
            return
        compared: Result = self._compare(self.result, self.stored)
        allowed = self.options.fail_above
        if not self.options.quiet:
            show(self.shell, compared)
        if allowed is None:
            return
        others = "; ".join(differences(self.result.conditions, self.stored.conditions))
        unknown: str | None = "the conditions differ"  # the comparison that is shown says how
        if not others:
            unknown = self._check(compared, allowed)
        elif self.options.quiet:
            unknown = f"other conditions than those stored: {others}"
        if unknown is not None:  # also with -q: the cell passes unchecked
            say(self.shell, f"--fail-above was not applied: {unknown}")
