"""Writing kept variables: interrupts and full disks."""

from __future__ import annotations

from functools import partial
from typing import IO, Any

import pytest

from gpumagic.errors import RestartError
from gpumagic.restart import variables as keep
from tests.restart.variables.files import create
from tests.restart.variables.runner import new_namespace


class Fails:
    """A file that fails at a write."""

    def __init__(self, file: IO[bytes], at: int, error: BaseException) -> None:
        self._file, self._left, self._error = file, at, error

    def write(self, data: Any) -> int:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_an_interrupt_while_tensors_are_written_is_one() -> None:
    """torch ends its archive all the same, and reports what it failed at then."""
    torch = pytest.importorskip("torch")
    namespace = new_namespace() | {"small": torch.ones(3), "large": torch.zeros(1 << 20)}
    chosen = keep.plan(namespace, ["small", "large"], namespace)
    for error, raised in (
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(28, "No space left on device"), RestartError),
    ):
        for at in range(12):
            made: list[Any] = []
            fails = partial(_second_fails, made, at, error)
            with pytest.raises(raised):
                keep.write(chosen, fails)
            assert all(file.closed for file in made)


def _second_fails(made: list[Any], at: int, error: BaseException, folder: str) -> Any:
    made.append(create(folder))
    return made[-1] if len(made) == 1 else Fails(made[-1], at, error)
