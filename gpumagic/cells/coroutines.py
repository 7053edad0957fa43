"""Run code that may await, written once as coroutines: with an event loop or without one.

Where nothing awaits, a coroutine is driven to its end by one ``send``, as IPython's pseudo-sync
runner does (`IPython.core.async_helpers`); where something does, the caller awaits it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

from gpumagic.cells.tracebacks import take_out_own

_T = TypeVar("_T")


def run_or_await(
    function: Callable[[], Coroutine[Any, Any, _T]], namespace: Mapping[str, Any], *, is_async: bool
) -> Any:
    """Run the coroutine function and return its value; if it awaits, return its coroutine.

    The traceback of an exception has no frames of ours before those of the notebook's code, whose
    namespace this is.
    """

    async def awaited() -> _T:
        __tracebackhide__ = True
        try:
            return await function()
        except BaseException as error:
            take_out_own(error, lambda frame: frame.f_globals is namespace)
            raise

    return awaited() if is_async else run_sync(function())


def run_sync(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that awaits nothing, and return its value.

    Exceptions pass unchanged, also a ``StopIteration``, which Python turns into a ``RuntimeError``
    where it leaves a coroutine.

    Raises:
        RuntimeError: the coroutine awaited something that needs an event loop.
    """
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return cast(_T, returned.value)
    except RuntimeError as error:
        stop = stop_iteration(error)
        if stop is None:
            raise
    else:
        coroutine.close()
        raise RuntimeError("the coroutine awaits, but is run without an event loop")
    raise stop


def stop_iteration(error: BaseException) -> StopIteration | None:
    """Return the ``StopIteration`` that became ``error`` when it left a coroutine of gpumagic.

    The outermost frame of its traceback is that coroutine's; it may also be one of the user's.
    """
    cause = error.__cause__
    if not isinstance(cause, StopIteration) or cause.__traceback__ is None:
        return None
    frame = cause.__traceback__.tb_frame
    ours = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "gpumagic"
    return cause if ours and frame.f_code.co_flags & inspect.CO_COROUTINE else None
