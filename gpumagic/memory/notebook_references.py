"""IPython's own references: outputs, the last result, the last exception.

The shell is passed in; nothing here imports IPython. Where each of these is referenced:

- ``Out`` (``_oh``, ``output_hist``), ``_1``, ``_2``…, the latter also in ``user_ns_hidden``;
- ``_``, ``__``, ``___``: in the namespace, in ``user_ns_hidden``, attributes of the displayhook;
- ``last_execution_result``: the last value and the last exception;
- ``sys.last_type``, ``last_value``, ``last_traceback`` and, from Python 3.12, ``last_exc``;
- ``InteractiveTB.tb``, and after ``%debug`` the debugger's frames in ``InteractiveTB.pdb``;
- from Python 3.12, the convenience variables that pdb leaves in the globals of frames it has shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from types import FrameType, TracebackType
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cells.compile import cell_of
from gpumagic.memory.object_graph import Root
from gpumagic.system import introspection

_UNDERSCORES = ("_", "__", "___")
_SYS = ("last_type", "last_value", "last_traceback", "last_exc")
_NUMBERED = re.compile(r"_\d+")
_INPUT = re.compile(r"_i{1,3}|_i\d+")
#: Where pdb keeps ``$_frame`` and the like, and those that it sets itself.
_CONVENIENCE, _PDBS = "__pdb_convenience_variables", ("_frame", "_exception", "_retval")
_OWN = {"_ih", "_oh", "_dh", "In", "Out", "exit", "quit", "get_ipython", "open"}

#: The kinds of places.
OUTPUT, LOCAL, EXCEPTION = "output", "failed function", "exception"
RESULT, LAST, DEBUGGER = "the last result", "the last exception", "the debugger"


class NotebookReferences:
    """What one IPython shell references."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    # --- names -----------------------------------------------------------------------------------

    @property
    def namespace(self) -> dict[str, Any]:
        found: dict[str, Any] = self.shell.user_ns
        return found

    @property
    def outputs(self) -> dict[Any, Any]:
        """``Out``."""
        found = self.namespace.get("_oh")
        return found if isinstance(found, dict) else {}

    def is_notebooks(self, name: str, value: Any) -> bool:
        """Return whether a name in the namespace is IPython's, not the user's."""
        if name in _UNDERSCORES:  # unless the user has assigned it: for _ in loader
            return value is getattr(self.shell.displayhook, name, None)
        if _NUMBERED.fullmatch(name):
            return self.shell.user_ns_hidden.get(name) is value
        if _INPUT.fullmatch(name):
            return type(value) is str
        if name.startswith("__") and name.endswith("__"):
            return True
        return name in _OWN and self.shell.user_ns_hidden.get(name) is value

    def cell_of(self, filename: str) -> int | None:
        """Return the number of the cell that a code's file name belongs to, or None."""
        return cell_of(self.shell, filename)

    def excluded(self) -> list[Any]:
        """Return the objects that a walk must not visit, since they lead to all others."""
        shell = self.shell
        found = [shell, shell.displayhook, shell.history_manager, shell.user_module]
        found += [shell.user_ns, shell.user_global_ns, shell.user_ns_hidden, self.outputs]
        # The kernel and the application, which lead to each other's outputs, tasks and streams.
        above = shell
        while (above := getattr(above, "parent", None)) is not None:
            found.append(above)
        return [*found, vars(shell.user_module), sys.modules, vars(sys)]

    def callbacks(self) -> Iterator[tuple[str, list[Any]]]:
        """Return the functions that IPython calls at its events, by the events' names."""
        for event, functions in introspection.names(self.shell.events.callbacks):
            yield event, list(functions)

    def places(self) -> list[Any]:
        """Return the objects that hold IPython's own references."""
        shell = self.shell
        found = [shell.displayhook, self._last, *self._formatters(), shell.user_ns_hidden]
        return [self.namespace, self.outputs, *found, vars(sys)]

    # --- roots -----------------------------------------------------------------------------------

    def roots(self) -> list[Root]:
        """Return these references as roots of a walk: first the failed functions' variables."""
        found = [Root(name, LOCAL, objects, True) for name, objects in self._locals().items()]
        outputs = [(f"Out[{n}]", value) for n, value in self.outputs.items()]
        outputs += [*self._outside_out(), (RESULT, getattr(self._last, "result", None))]
        found += [Root(name, OUTPUT, (value,), True) for name, value in outputs]
        found.append(Root(LAST, EXCEPTION, self.exceptions(), True))
        found.append(Root(DEBUGGER, EXCEPTION, self._debuggers(), True))
        return found

    @property
    def _last(self) -> Any:
        return self.shell.last_execution_result

    def _outside_out(self) -> Iterator[tuple[str, Any]]:
        """Return ``_`` and the like, and ``_5`` where ``Out[5]`` is deleted."""
        hook, hidden = self.shell.displayhook, self.shell.user_ns_hidden
        for name in _UNDERSCORES:
            yield name, (getattr(hook, name, None), hidden.get(name))
        for name, value in list(hidden.items()):
            if _NUMBERED.fullmatch(name) and self.outputs.get(int(name[1:])) is not value:
                yield name, value

    def exceptions(self) -> list[Any]:
        """Return the last exception's objects: exceptions and tracebacks."""
        found = [getattr(sys, name, None) for name in _SYS[1:]]
        found += [getattr(self._last, f"error_{when}", None) for when in ("in_exec", "before_exec")]
        found += [vars(formatter).get("tb") for formatter in self._formatters()]
        return [each for each in found if each is not None]

    def _formatters(self) -> Iterator[Any]:
        """Return IPython's formatters of tracebacks, which keep the last one."""
        for name in ("InteractiveTB", "SyntaxTB"):
            formatter = getattr(self.shell, name, None)
            if formatter is not None:
                yield formatter

    def _debuggers(self) -> list[Any]:
        found = [vars(formatter).get("pdb") for formatter in self._formatters()]
        found += [kept.get(name) for kept in self._convenience() for name in _PDBS]
        return [each for each in found if each is not None]

    def _convenience(self) -> list[dict[str, Any]]:
        """Return pdb's convenience variables in the namespace and in failed functions' globals."""
        spaces = {id(self.namespace): self.namespace}
        spaces.update((id(frame.f_globals), frame.f_globals) for frame, _ in self.failed())
        found = [space.get(_CONVENIENCE) for space in spaces.values()]
        return [each for each in found if type(each) is dict]

    def failed(self) -> list[tuple[FrameType, int]]:
        """Return the functions that failed last: their frames, and the lines in them.

        The user's first, then those of libraries; the innermost first. Without the notebook's own
        namespace.
        """
        found: dict[int, tuple[FrameType, int]] = {}
        for each in self.exceptions():
            found_in: list[Any] = [each] if type(each) is TracebackType else []
            if introspection.is_a(each, BaseException):
                found_in = [introspection.traceback(error) for error in introspection.linked(each)]
            for traceback in found_in:
                for frame, line in self._below(traceback):
                    if frame.f_locals is not frame.f_globals:
                        found[id(frame)] = (frame, line)
        innermost_first = list(found.values())[::-1]
        return sorted(innermost_first, key=lambda step: not self._is_users(step[0]))

    def _below(self, traceback: Any) -> list[tuple[FrameType, int]]:
        """Return a traceback's steps from the user's first one on, without IPython's above it."""
        steps = list(tracebacks.steps(traceback))
        users = [place for place, (frame, _) in enumerate(steps) if self._is_users(frame)]
        return steps[users[0] :] if users else steps

    def _is_users(self, frame: FrameType) -> bool:
        return tracebacks.is_users(frame.f_code.co_filename, self.cell_of)

    def _locals(self) -> dict[str, list[Any]]:
        """Return the failed functions' variables by their displayed names."""
        found: dict[str, list[Any]] = {}
        for frame, line in self.failed():
            where = tracebacks.described(frame, line, self.cell_of)
            for name, value in introspection.local_variables(frame):
                found.setdefault(f"{name} ({where})", []).append(value)
        return found

    # --- deletion --------------------------------------------------------------------------------

    def release(self, roots: Collection[Root]) -> bool:
        """Delete the references of the ``roots``; return whether the last exception was among them.

        Frames are not cleared: a variable may lead to one in ways that the walk does not see, and
        clearing a generator's frame ends the generator.
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
        for name in (name for name in _UNDERSCORES if name in names):
            # As IPython's own displayhook.flush() does.
            if name in space and space[name] is getattr(hook, name):
                space[name] = ""
            if name in hidden:
                hidden[name] = ""
            setattr(hook, name, "")

    def _forget_exception(self) -> None:
        for kept in self._convenience():
            for name in _PDBS:
                kept.pop(name, None)
        for name in _SYS:
            if hasattr(sys, name):
                delattr(sys, name)
        if self._last is not None:
            self._last.error_in_exec = self._last.error_before_exec = None
        for formatter in self._formatters():
            vars(formatter).pop("tb", None)
            if vars(formatter).get("pdb") is not None:
                formatter.pdb = None  # IPython makes another when it needs one
