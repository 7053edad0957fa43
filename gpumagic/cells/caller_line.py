"""Calls from frames that have the file, the line and the globals of another one.

torch's warnings name the innermost line of Python, and Python shows one warning for each line: both
are as without us where a function of ours calls torch's in place of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from gpumagic.cells import tracebacks

#: All of it is in one line.
_CALL: CodeType = (lambda function, arguments, named: function(*arguments, **named)).__code__


def call_in_line_of(
    frame: FrameType, function: Any, arguments: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """Return ``function(*arguments, **named)``, called as if by the line at which ``frame`` is.

    No frame of ours is in the traceback of what it raises.
    """
    code = _CALL.replace(co_filename=frame.f_code.co_filename, co_firstlineno=frame.f_lineno or 1)
    try:
        return FunctionType(code, frame.f_globals)(function, arguments, named)
    except BaseException as error:
        tracebacks.cut_first_frame(error)  # this one
        tracebacks.cut_first_frame(error)  # and that of the code above
        raise
