"""References from other places than variables: running code, and registered functions.

Threads by their frames, event loops by their handles, `weakref.finalize`, the attributes of `sys`,
IPython's events. ``%gpumem free`` deletes none of these.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import types
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.memory.notebook_references import NotebookReferences
from gpumagic.memory.object_graph import Root
from gpumagic.memory.referents import finalizers
from gpumagic.system import introspection

#: The kinds of these roots.
CALLBACK, RUNNING, ATTRIBUTE = KINDS = "callback", "running", "attribute"
#: Excluded from `sys`: modules have roots of their own; the last exception is the notebook's.
_OF_SYS = {"modules", "last_type", "last_value", "last_traceback", "last_exc"}
_PLAIN = {id(kind) for kind in (types.ModuleType, types.BuiltinFunctionType, str, int, bool)}
#: The most objects that are visited to find the task of an event loop's handle.
_NEAR = 64


def finalized() -> Iterator[Root]:
    """Return the functions and arguments that `weakref.finalize` references, as roots."""
    for function, *arguments in finalizers():
        yield Root(f"weakref.finalize({_called(function)})", CALLBACK, (function, *arguments))


class OtherReferences:
    """All such references now."""

    def __init__(self, notebook: NotebookReferences | None) -> None:
        self._notebook = notebook
        self._threads = other_threads()
        # Not as a list: one of its own frames would refer to it, and keep all of them alive.
        own = tracebacks.stack(sys._getframe(1))
        self._loops = _loops(itertools.chain([own], (stack for _, stack in self._threads)))

    def excluded(self) -> list[Any]:
        """Return the objects that a walk must not visit: their content has roots of its own."""
        return [loop for loop, _ in self._loops]

    def roots(self) -> list[Root]:
        """Return these references as roots of a walk."""
        found: dict[tuple[str, str], list[Any]] = {}
        for name, kind, value in (*self._in_threads(), *self._in_loops(), *self._in_python()):
            found.setdefault((name, kind), []).append(value)
        return [Root(name, kind, values) for (name, kind), values in found.items()]

    def _in_threads(self) -> Iterator[tuple[str, str, Any]]:
        cell_of = self._notebook.cell_of if self._notebook else tracebacks.no_cells
        for thread, stack in self._threads:
            for frame in stack:
                users = tracebacks.is_users(frame.f_code.co_filename, cell_of)
                where = tracebacks.described(frame, frame.f_lineno, cell_of) if users else ""
                for name, value in introspection.running_variables(frame):
                    shown = f"{name} ({where}, in a running thread)" if users else thread
                    yield shown, RUNNING, value

    def _in_loops(self) -> Iterator[tuple[str, str, Any]]:
        for _, attributes in self._loops:
            for handle in _handles(attributes):
                yield _awaiting(handle), CALLBACK, handle
            for name, value in attributes.items():
                if name not in ("_ready", "_scheduled", "_selector"):
                    yield "the event loop", CALLBACK, value

    def _in_python(self) -> Iterator[tuple[str, str, Any]]:
        for name, value in list(vars(sys).items()):
            if name not in _OF_SYS and id(type(value)) not in _PLAIN:
                yield f"sys.{name}", ATTRIBUTE, value
        if self._notebook is not None:
            for event, functions in self._notebook.callbacks():
                for function in functions:
                    yield f"a callback of IPython's ({event})", CALLBACK, function


# --- threads -------------------------------------------------------------------------------------


def other_threads() -> list[tuple[str, list[types.FrameType]]]:
    """Return the displayed name and the frames of each other running thread."""
    own = threading.get_ident()
    names = {
        ident: introspection.attributes(thread, threading.Thread).get("_name")
        for ident, thread in list(threading._active.items())  # type: ignore[attr-defined]
    }
    found: list[tuple[str, list[types.FrameType]]] = []
    running = sys._current_frames()
    del running[own]  # a variable of this frame that refers to it would keep its callers alive
    for ident, frame in running.items():
        name = names.get(ident)
        shown = f"the running thread {name}" if type(name) is str else "a running thread"
        found.append((shown, list(tracebacks.stack(frame))))
    return found


# --- event loops ---------------------------------------------------------------------------------


def _loops(stacks: Iterable[Iterable[types.FrameType]]) -> list[tuple[Any, dict[str, Any]]]:
    """Return asyncio's running event loops, and the one of IPython's cells, with attributes."""
    base, events = (sys.modules.get(f"asyncio.{name}") for name in ("base_events", "events"))
    if base is None or events is None:
        return []
    kind, runs = base.BaseEventLoop, base.BaseEventLoop.run_forever.__code__
    helpers = sys.modules.get("IPython.core.async_helpers")
    loops: list[Any] = [events._get_running_loop(), getattr(helpers, "_asyncio_event_loop", None)]
    for frame in (frame for stack in stacks for frame in stack if frame.f_code is runs):
        loops += [value for name, value in introspection.running_variables(frame) if name == "self"]
    known = {id(loop): loop for loop in loops if introspection.is_a(loop, kind)}
    return [
        (loop, dict(introspection.attributes(loop, events.AbstractEventLoop)))
        for loop in known.values()
    ]


def _handles(attributes: dict[str, Any]) -> list[Any]:
    """Return an event loop's handles: to call soon, later, and when a file is ready."""
    ready, later, selector = (attributes.get(n) for n in ("_ready", "_scheduled", "_selector"))
    found = list(ready) if type(ready) is deque else []
    found += later if type(later) is list else []
    selectors = sys.modules.get("selectors")
    base = getattr(selectors, "_BaseSelectorImpl", None)
    if base is not None and introspection.is_a(selector, base):
        inside = introspection.attributes(selector, selectors.BaseSelector)  # type: ignore[union-attr]
        for _, key in introspection.entries(inside.get("_fd_to_key")):
            found += key[3] if type(key) is selectors.SelectorKey else ()  # type: ignore[union-attr]
    return [handle for handle in found if handle is not None]


def _awaiting(handle: Any) -> str:
    """Return the displayed name of the task or function that a handle of an event loop calls."""
    tasks = sys.modules.get("asyncio.tasks")
    kinds = {id(getattr(tasks, name, None)) for name in ("_CTask", "_PyTask")}
    seen, near = {id(handle)}, deque([handle])
    while near and len(seen) < _NEAR:
        thing = near.popleft()
        if id(type(thing)) in kinds:
            coroutine = introspection.slot(thing, "_coro")
            name = coroutine.__qualname__ if type(coroutine) is types.CoroutineType else "…"
            return f"a task of the event loop ({name})"
        if thing is handle or id(type(thing)) in _LEADING:
            inside = [*gc.get_referents(thing), getattr(thing, "__self__", None)]
        elif introspection.name_of(type(thing)) == "Future":
            inside = gc.get_referents(thing)
        else:
            continue
        near += [inner for inner in inside if id(inner) not in seen]
        seen.update(map(id, inside))
    function = introspection.slot(handle, "_callback")
    return f"a callback of the event loop ({_called(function)})"


#: The ids of the types through which a handle leads to its task.
_LEADING = {id(kind) for kind in (tuple, list, types.BuiltinFunctionType)}


def _called(function: Any) -> str:
    return function.__qualname__ if type(function) is types.FunctionType else "…"
