"""A further run of code that was timed already, for its kernels, its FLOPs or its energy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpumagic.cells.coroutines import stop_iteration
from gpumagic.magics import terminal
from gpumagic.magics.cudatime.delivery import Delivery
from gpumagic.system import text

_T = TypeVar("_T")


async def attempt(
    delivery: Delivery, option: str, code: Callable[[], Awaitable[_T]], value: _T
) -> tuple[_T, str | None]:
    """Await ``code()``, a run for ``option``; return its value, and None.

    Where the code raises, return ``value`` and a line that says so: not every code can run twice,
    and the timed run has succeeded.
    """
    __tracebackhide__ = True
    try:
        return await code(), None
    except KeyboardInterrupt:
        if not delivery.options.quiet:
            terminal.write_line(
                f"%cudatime: interrupted in the further run for {option}; the timed run is complete"
            )
        raise
    except Exception as error:
        raised = stop_iteration(error) or error
    return value, (
        f"the code raised {text.named(raised)} when it was run once more; leave {option} out, or "
        "write code that can run again"
    )
