"""What an IPython shell itself refers to, beside the user's variables, and how it is forgotten.

These are:

- ``Out`` (``_oh``), ``_1``, ``_2``…, the latter also in ``user_ns_hidden``;
- ``_``, ``__``, ``___``: in the namespace, in ``user_ns_hidden``, attributes of the displayhook;
- ``last_execution_result``: the last value and the last exception;
- ``sys.last_type``, ``last_value``, ``last_traceback`` and, from Python 3.12, ``last_exc``;
- ``InteractiveTB.tb``, and after ``%debug`` the debugger's frames in ``InteractiveTB.pdb`` and,
  from Python 3.12, in the namespace.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeAlias

from gpumagic.cells import tracebacks, user_names
from gpumagic.cells.compile import cell_of
from gpumagic.cells.user_names import UNDERSCORES
from gpumagic.system import introspection
from gpumagic.system.shell import Shell

_SYS = ("last_type", "last_value", "last_traceback", "last_exc")
_NUMBERED = re.compile(r"_\d+")
_PDBS = "__pdb_convenience_variables"

#: The kinds of the notebook's roots.
OUTPUT, LOCAL, EXCEPTION = "output", "failed function", "exception"
RESULT, LAST = "the last result", "the last exception"


class Root(NamedTuple):
    """A place from which references come: a variable, or a reference of the notebook's."""

    name: str
    kind: str
    #: Whether the notebook refers to it, not a variable: ``%gpumem free`` frees it.
    by_notebook: bool = False


#: The objects to which each root refers, in the order in which blocks count to the roots.
Roots: TypeAlias = "dict[Root, list[Any]]"


class NotebookReferences:
    """What one IPython shell references."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    # --- names -----------------------------------------------------------------------------------

    @property
    def namespace(self) -> dict[str, Any]:
        """The user's variables."""
        return self.shell.user_ns

    @property
    def outputs(self) -> dict[Any, Any]:
        """``Out``."""
        found = self.namespace.get("_oh")
        return found if isinstance(found, dict) else {}

    def is_notebooks(self, name: str, value: object) -> bool:
        """Return whether a name in the namespace is not the user's."""
        return not user_names.is_bound_by_user(self.shell, name, value)

    def cell_of(self, filename: str) -> int | None:
        """Return the number of the cell that a code's file name belongs to, or None."""
        return cell_of(self.shell, filename)

    # --- for a walk ------------------------------------------------------------------------------

    def excluded(self) -> list[Any]:
        """Return the objects that a walk must not visit, since they lead to all others."""
        shell = self.shell
        found = [shell.displayhook, shell.history_manager, shell.events, shell.events.callbacks]
        found += [shell.user_ns_hidden, shell.user_global_ns, self.outputs]
        above: Any = shell
        while above is not None:  # the kernel and the application lead to all the rest
            found += [above, vars(above), getattr(above, "_trait_values", None)]
            above = getattr(above, "parent", None)
        return [each for each in found if each is not None]

    def places(self) -> list[Any]:
        """Return the objects that hold the values of `roots`."""
        shell, last = self.shell, self._last
        found = [shell.user_ns_hidden, self.outputs, vars(shell.displayhook), vars(shell)]
        found += [getattr(shell, "_trait_values", {}), vars(shell.InteractiveTB)]
        return [*found, {} if last is None else vars(last), self.namespace.get(_PDBS, {})]

    def roots(self) -> Roots:
        """Return these references as roots: first the failed functions' variables."""
        last = {LAST: self._exceptions()}
        outputs = {f"Out[{n}]": [value] for n, value in list(self.outputs.items())}
        outputs |= {**dict(self._outside_out()), RESULT: [getattr(self._last, "result", None)]}
        return {
            Root(name, kind, by_notebook=True): values
            for kind, found in ((LOCAL, self._locals()), (OUTPUT, outputs), (EXCEPTION, last))
            for name, values in found.items()
        }

    @property
    def _last(self) -> Any:
        return self.shell.last_execution_result

    def _outside_out(self) -> Iterator[tuple[str, list[Any]]]:
        """Return ``_`` and the like, and ``_5`` where ``Out[5]`` is deleted."""
        hook, hidden = self.shell.displayhook, self.shell.user_ns_hidden
        for name in UNDERSCORES:
            yield name, [vars(hook).get(name), hidden.get(name)]
        for name, value in list(hidden.items()):
            if _NUMBERED.fullmatch(name) and self.outputs.get(int(name[1:])) is not value:
                yield name, [value]

    def _exceptions(self) -> list[Any]:
        """Return the last exception's objects: exceptions, tracebacks, the debugger."""
        formatter, found = vars(self.shell.InteractiveTB), list[Any]()
        found += [getattr(sys, name, None) for name in _SYS[1:]]
        found += [getattr(self._last, f"error_{when}", None) for when in ("in_exec", "before_exec")]
        found += [formatter.get("tb"), formatter.get("pdb"), self.namespace.get(_PDBS)]
        return [each for each in found if each is not None]

    def _failed(self) -> list[tuple[FrameType, int]]:
        """Return the functions that failed last: their frames, and the lines in them.

        The user's first, then those of libraries; the innermost first.
        """
        found: dict[int, tuple[FrameType, int]] = {}
        for each in self._exceptions():
            begin: list[Any] = [each] if type(each) is TracebackType else []
            if introspection.is_a(each, BaseException):
                begin = [introspection.traceback(error) for error in introspection.linked(each)]
            for traceback in begin:
                steps = list(walk_tb(traceback))
                first = next((n for n, step in enumerate(steps) if self._is_users(step[0])), 0)
                for frame, line in steps[first:]:  # without IPython's above the user's
                    if frame.f_locals is not frame.f_globals:
                        found[id(frame)] = (frame, line)
        innermost_first = list(found.values())[::-1]
        return sorted(innermost_first, key=lambda step: not self._is_users(step[0]))

    def _is_users(self, frame: FrameType) -> bool:
        return tracebacks.is_users(frame.f_code.co_filename, self.cell_of)

    def _locals(self) -> dict[str, list[Any]]:
        """Return the failed functions' variables by their displayed names."""
        found: dict[str, list[Any]] = {}
        for frame, line in self._failed():
            where = tracebacks.described(frame, line, self.cell_of)
            for name, value in introspection.local_variables(frame):
                found.setdefault(f"{name} ({where})", []).append(value)
        return found

    # --- deletion --------------------------------------------------------------------------------

    def release(self, roots: Collection[Root]) -> bool:
        """Delete the references of roots; return whether the last exception was among them.

        Frames are not cleared: clearing a generator's frame ends the generator.
        """
        names = {root.name for root in roots}
        self._forget_outputs(names)
        if RESULT in names and self._last is not None:
            self._last.result = None
        failed = any(root.kind in (LOCAL, EXCEPTION) for root in roots)
        if failed:
            self._forget_exception()
        return failed

    def _forget_outputs(self, names: Collection[str]) -> None:
        space, hidden, hook = self.namespace, self.shell.user_ns_hidden, self.shell.displayhook
        for number in [n for n in self.outputs if f"Out[{n}]" in names]:
            value = self.outputs.pop(number)
            if space.get(f"_{number}") is value:
                del space[f"_{number}"]
            hidden.pop(f"_{number}", None)
        for name in names:
            if _NUMBERED.fullmatch(name):
                value = hidden.pop(name, None)
                if space.get(name) is value:
                    space.pop(name, None)
        for name in (name for name in UNDERSCORES if name in names):
            # As IPython's own displayhook.flush() does.
            if name in space and self.is_notebooks(name, space[name]):
                space[name] = ""
            if name in hidden:
                hidden[name] = ""
            setattr(hook, name, "")

    def _forget_exception(self) -> None:
        self.namespace.pop(_PDBS, None)
        for name in _SYS:
            if hasattr(sys, name):
                delattr(sys, name)
        if self._last is not None:
            self._last.error_in_exec = self._last.error_before_exec = None
        vars(self.shell.InteractiveTB).pop("tb", None)
        if vars(self.shell.InteractiveTB).get("pdb") is not None:
            self.shell.InteractiveTB.pdb = None  # IPython makes another when it needs one
