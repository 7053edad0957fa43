"""The number of each cell by the file name of its code, for IPython 7, which does not keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def keep(compiler: Any) -> Callable[[], None]:
    """Keep the numbers of cells to come in a shell's compiler, as IPython 8 does.

    Returns what undoes it.
    """
    if hasattr(compiler, "_filename_map"):
        return lambda: None
    numbers: dict[str, int] = {}
    original = compiler.cache

    def cache(transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = original(transformed_code, number, raw_code)
        numbers[name] = number
        return name

    def undo() -> None:
        del compiler.cache, compiler._filename_map

    compiler.cache, compiler._filename_map = cache, numbers
    return undo
