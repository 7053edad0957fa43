"""``%%gpumem --fit NAME=LOW:HIGH``: the largest value with which the cell fits into memory."""

from __future__ import annotations

import argparse
import ast
import gc
import sys
from contextlib import suppress
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from gpumagic.cells.compile import CompiledCell
from gpumagic.cells.coroutines import run_or_await
from gpumagic.cuda import allocator, torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.output import hand_over
from gpumagic.memory.fit import FitSearch, fitted
from gpumagic.memory.limit import LIMIT
from gpumagic.memory.measurement import Measurement
from gpumagic.memory.report import memory_report
from gpumagic.results.fit import Fit
from gpumagic.system.text import plural

_RAN_SEVERAL_TIMES = (
    "the cell ran {}, with its names in a namespace of their own; what it changed in objects "
    "of yours (a training step) was changed each time"
)


def run(magics: Any, options: argparse.Namespace, cell: CompiledCell) -> Any:
    """Run the cell with several values and hand over the `Fit`.

    Raises:
        SpecError: the value of the variable makes no difference to the cell.
        DeviceError: the cell uses no GPU memory.
    """
    __tracebackhide__ = True
    _check_name(options.fit.name, cell)
    fit = options.fit
    # The first run may be what makes the first context of the process.
    search = FitSearch(fit.low, fit.high, _available() if torch_cuda.contexts() else None)
    namespace = magics.shell.user_ns
    absent = object()
    before = namespace.get(fit.name, absent)

    async def search_largest() -> Any:
        __tracebackhide__ = True
        found = None
        try:
            while (value := search.next()) is not None:
                namespace[fit.name] = value
                search.add(value, await _peak(cell, fit.name, value))
                if not torch_cuda.contexts():
                    raise DeviceError(f"--fit: the cell uses no GPU: {torch_cuda_state()}")
                # Less where the first run has created what stays: an optimizer's state.
                available = _available()
                search.available = min(search.available or available, available)
                LIMIT.update()
            found = search.largest
        finally:
            if found is not None:
                namespace[fit.name] = found
            elif before is absent:
                namespace.pop(fit.name, None)
            else:
                namespace[fit.name] = before
        return hand_over(magics.shell, _result(fit.name, search), options)

    return run_or_await(search_largest, is_async=cell.is_async)


def _check_name(name: str, cell: CompiledCell) -> None:
    line = _line_that_sets(cell.tree, name)
    if line is not None:
        raise SpecError(
            f"--fit {name}: the cell sets {name} itself, in line {line}; leave that out"
        )
    functions = [
        value.__code__
        for value in cell.globals.values()
        if type(value) is FunctionType and value.__globals__ is cell.globals
    ]
    codes = [code for code in (cell.body, cell.last, *functions) if code is not None]
    if not any(_names(code, name) for code in codes):
        raise SpecError(
            f"--fit {name}: the cell does not use {name}; write the variable that decides how much "
            "memory the cell needs"
        )


def _line_that_sets(tree: ast.Module, name: str) -> int | None:
    """Return the line of an assignment of the cell before which nothing names the variable."""
    for statement in tree.body:
        named = [each for each in ast.walk(statement) if getattr(each, "id", None) == name]
        if named:
            is_set = all(isinstance(getattr(each, "ctx", None), ast.Store) for each in named)
            return statement.lineno if is_set and isinstance(statement, ast.Assign) else None
    return None


def _names(code: CodeType, name: str) -> bool:
    """Return whether code names a variable, perhaps in a text, which may be code."""
    return name in code.co_names or any(
        _names(each, name) if isinstance(each, CodeType) else type(each) is str and name in each
        for each in code.co_consts
    )


def torch_cuda_state() -> str:
    """Return why there is no GPU memory in use."""
    if torch_cuda.loaded() is None:
        return "torch is not imported"
    return "CUDA is not in use in this process"


def _available() -> int:
    """Return the bytes that the code may still allocate, on the device with the fewest."""
    available = []
    for memory in memory_report().devices.values():
        if memory.context and memory.free is not None:
            cached = (memory.reserved or 0) - (memory.allocated or 0)
            available.append(memory.free + cached)
    for ordinal in torch_cuda.contexts():
        limit = allocator.memory_limit(ordinal)
        allocated, _ = torch_cuda.memory_held(ordinal)
        if limit is not None:
            available.append(limit - allocated)
    return max(min(available, default=0), 1)


async def _peak(cell: CompiledCell, name: str, value: int) -> int | None:
    """Run the cell with a value; return its peak, or None if memory ran out. Leaves nothing."""
    __tracebackhide__ = True
    # In a copy of the namespace, so that what a run makes ends with it.
    namespace = {**cell.globals, name: value}
    separate = cell.locals is not cell.globals
    local = {**cell.locals, name: value} if separate else namespace
    once = replace(cell, globals=namespace, locals=local)
    measurement = Measurement()
    failed = False
    try:
        await once.run(measurement)
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        failed = True
        _forget(error)
    finally:
        # Not cleared: functions that the cell made may live on in objects of the user's.
        del namespace, local, once
        gc.collect()
        torch_cuda.empty_cache()
    # Also where the cell has caught the error itself.
    if failed or any(delta.ooms for delta in measurement.result.devices.values()):
        return None
    return max((delta.peak for delta in measurement.result.devices.values()), default=0)


def _is_out_of_memory(error: RuntimeError) -> bool:
    torch: Any = torch_cuda.loaded()  # the run may be what has imported it
    return torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)


def _forget(error: BaseException) -> None:
    """Clear the frames of an exception, which hold what the failed run had allocated."""
    step = error.__traceback__
    while step is not None:
        with suppress(RuntimeError):  # it is still running
            step.tb_frame.clear()
        step = step.tb_next
    error.__traceback__ = None
    if sys.exc_info()[1] is error:
        error.__context__ = None


def _result(name: str, search: FitSearch) -> Fit:
    curve = fitted(search.runs)
    notes = [_RAN_SEVERAL_TIMES.format(plural(search.number, "time"))]
    if search.largest is not None:
        notes.insert(0, f"{name} is left at {search.largest:,}")
    if search.largest is not None and not search.is_exact:
        runs = plural(search.number, "run")
        notes.append(f"the search ended after {runs}")
    return Fit(
        name,
        search.largest,
        tuple(search.runs),
        search.is_exact,
        None if curve is None else curve.factor,
        None if curve is None else curve.at_zero,
        tuple(notes),
        1.0 if curve is None else curve.power,
    )
