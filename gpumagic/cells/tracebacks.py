"""Locate frames and exceptions in the user's code: file or cell, line, function."""

from __future__ import annotations

import dis
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import IPython

from gpumagic.system import introspection

#: Returns the execution number of the cell with a file name; None for any other file.
CellOf = Callable[[str], "int | None"]


def take_out_own(error: BaseException, is_notebooks: Callable[[FrameType], bool]) -> None:
    """Take gpumagic's frames out of a traceback.

    ``is_notebooks`` tells which frames belong to the notebook's code. The frames that this code has
    called stay, up to the next frame of gpumagic. If the notebook's code did not run at all, no
    frame stays. The first frame belongs to the caller, which raises the exception again.
    """
    own = str(Path(__file__).parents[1]) + os.sep
    steps = []
    step: Any = error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    last = max((i for i, each in enumerate(steps) if is_notebooks(each.tb_frame)), default=0)
    kept = steps[:1]
    for i, step in enumerate(steps[1:], start=1):
        if not step.tb_frame.f_code.co_filename.startswith(own):
            kept.append(step)
        elif i > last:
            break
    if not last:
        error.__traceback__ = None
        del kept[1:]  # before Python 3.11, `raise` has a reference of its own to the first one
    for before, after in zip(kept, [*kept[1:], None], strict=True):
        before.tb_next = after


@cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of Python, of installed packages, and of gpumagic."""
    # In a virtual environment one of the two of Python is the environment's own, which is empty.
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    folders |= {str(Path(os.__file__).parent), str(Path(__file__).parents[1])}
    # On clusters packages are often in a folder of PYTHONPATH, by `pip install --target`.
    folders.add(str(Path(IPython.__file__).parents[1]))
    return tuple(sorted(folder + os.sep for folder in folders if folder))


def is_users(filename: str | None, cell_of: CellOf | None = None) -> bool:
    """Return whether a file is the user's own: a cell, or not part of an installed library."""
    if not filename:
        return False
    if cell_of is not None and cell_of(filename) is not None:
        return True
    if filename.startswith("<") or "site-packages" in filename or "dist-packages" in filename:
        return False
    return not filename.startswith(_libraries())


def users_modules() -> dict[str, Any]:
    """Return the user's own modules by name; loads no lazy module."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name == "__main__" or is_users(introspection.module_file(module))
    }


def described(frame: FrameType, line: int, cell_of: CellOf | None = None) -> str:
    """Return a position: ``train.py line 12``, or in a function ``In[5] line 3 in forward``."""
    code = frame.f_code
    cell = cell_of and cell_of(code.co_filename)
    where = f"{Path(code.co_filename).name if cell is None else f'In[{cell}]'} line {line}"
    if code.co_name.startswith(("<module", "<cell")):
        return where
    return f"{where} in {getattr(code, 'co_qualname', code.co_name)}"


def assigned(step: TracebackType) -> set[str]:
    """Return the global variables that the line of a traceback would have assigned next."""
    code, line = step.tb_frame.f_code, step.tb_lineno
    own = [range(begin, end) for begin, end, number in code.co_lines() if number == line]
    return {
        each.argval
        for each in dis.get_instructions(code)
        if each.opname in ("STORE_NAME", "STORE_GLOBAL")
        and each.offset > step.tb_lasti
        and any(each.offset in part for part in own)
    }


def source(frame: FrameType, line: int) -> str | None:
    """Return the source of a line without indentation; None if not known."""
    file = frame.f_code.co_filename
    return linecache.getline(file, line, frame.f_globals).strip() or None
