"""Measure each call of a function of a script: the decorators ``@cudatime`` and ``@gpumem``."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from gpumagic.cells.measured_block import Measured
from gpumagic.errors import SpecError
from gpumagic.system.output import Output


def kind_of(function: object) -> Literal["plain", "coroutine", "generator"]:
    """Return what a call of ``function`` returns: a value, a coroutine or a generator."""
    for each in (function, type(function).__call__):  # the latter of a callable object
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            return "generator"
        if inspect.iscoroutinefunction(each):
            return "coroutine"
    return "plain"


def name_of(function: object) -> str:
    """Return the name of a function, of a partial's function, or of a callable object's class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def decorated(function: object, measure: type[Measured[Any, Any]], *, quiet: bool = False) -> Any:
    """Wrap ``function`` so that every call is measured, with its awaits if it is a coroutine.

    The last call's result is an attribute of the function, and is printed unless ``quiet``. A call
    that torch.compile traces is not measured: the function is compiled unchanged.

    Args:
        function: Any callable, ``staticmethod`` or ``classmethod``.
        measure: The kind of measurement.
        quiet: Whether nothing is printed.

    Raises:
        SpecError: ``function`` is a generator function, of which only the creation would be
            measured, or cannot be called.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorated(function.__func__, measure, quiet=quiet))
    if not callable(function):
        raise SpecError(f"a function can be measured, not {type(function).__name__}")
    kind, name = kind_of(function), name_of(function)
    if kind == "generator":
        raise SpecError(
            f"{name} is a generator: measure the loop that uses it, {measure.statement}"
        )

    @contextmanager
    def measured_call() -> Iterator[None]:
        measured = measure()
        try:
            with measured:
                yield
        finally:
            if measured.finished is not None:  # the measurement may have been interrupted
                setattr(wrapped, measure.attribute, measured.finished)
                if not quiet:
                    Output().print(f"{name}:\n{measured.finished}")

    async def run_async(*args: object, **kwargs: object) -> Any:
        with measured_call():
            return await function(*args, **kwargs)

    def run(*args: object, **kwargs: object) -> Any:
        compiler = sys.modules.get("torch.compiler")
        if compiler is not None and compiler.is_compiling():
            return function(*args, **kwargs)
        with measured_call():
            return function(*args, **kwargs)

    # Only for functions: the attributes of an nn.Module are its parameters.
    updated = ("__dict__",) if isinstance(function, types.FunctionType) else ()
    around = functools.wraps(function, updated=updated)
    wrapped = around(run_async if kind == "coroutine" else run)
    setattr(wrapped, measure.attribute, None)
    return wrapped
