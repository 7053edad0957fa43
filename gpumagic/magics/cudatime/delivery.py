"""Where a timing goes: on the screen, into a variable, among those kept, and back to the caller."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from gpumagic.magics.cudatime.named_results import keep
from gpumagic.magics.output import hand_over
from gpumagic.results import CudaTiming


class Delivery:
    """The way of one ``%cudatime``'s result to the user."""

    def __init__(self, magics: Any, options: argparse.Namespace) -> None:
        self._magics = magics
        self.shell = magics.shell
        self.options = options
        #: None until there is a result.
        self.result: CudaTiming | None = None

    @property
    def returned(self) -> CudaTiming | None:
        """What the magic returns: the result if ``-o`` asks for it."""
        return self.result if self.options.output else None

    def deliver(self, result: CudaTiming) -> None:
        """Show ``result``, and keep it where the options say."""
        self.result = result
        keep(self._magics, self.options.name, result)
        hand_over(self.shell, result, self.options)

    def add(self, **fields: Any) -> None:
        """Put what was found out later into the result, wherever it is kept. Shows nothing."""
        assert self.result is not None
        self.result = replace(self.result, **fields)
        keep(self._magics, self.options.name, self.result)
        if self.options.variable:
            self.shell.user_ns[self.options.variable] = self.result
