"""Trace the begin and end of each import of a package, without a frame on its stack.

Python keeps a lock for each module that is being imported, and weak references to these locks in a
dictionary of its import system. This dictionary is replaced by one that notices each lock that is
added; a weak reference notices when the lock is deleted. So no frame is added to an import or shown
in a traceback, and ``builtins.__import__`` and ``sys.meta_path`` are unchanged.
"""

from __future__ import annotations

import _imp
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

_bootstrap: Any = import_module("importlib._bootstrap")


class _Locks(dict[str, "weakref.ref[Any]"]):
    """The locks of the modules that are currently being imported, by name."""

    def __init__(self, began: Callable[[], None], ended: Callable[[str], None]) -> None:
        super().__init__(_bootstrap._module_locks)
        self._began = began
        self._ended = ended
        self._watched: dict[str, weakref.ref[Any]] = {}

    def __setitem__(self, name: str, lock: weakref.ref[Any]) -> None:
        super().__setitem__(name, lock)
        held = None if "." in name else lock()
        if held is not None:
            self._began()
            self._watched[name] = weakref.KeyedRef(held, self._gone, name)

    def _gone(self, lock: weakref.KeyedRef[str, Any]) -> None:
        # Another thread may have begun the same import again.
        if self._watched.get(lock.key) is lock:
            del self._watched[lock.key]
            self._ended(lock.key)

    def forget(self) -> None:
        """Call ``ended`` for none of the imports under way."""
        self._watched.clear()


class ImportTrace:
    """A trace that calls ``began()`` and ``ended(name)`` around each first import of a package.

    ``began`` is called while the import system's own lock is held: it must not import anything nor
    wait for a lock. `detach` restores what `attach` replaces. Where this Python has no such
    dictionary, nothing is called.
    """

    def __init__(self, began: Callable[[], None], ended: Callable[[str], None]) -> None:
        self._began = began
        self._ended = ended
        self._locks: _Locks | None = None

    @property
    def attached(self) -> bool:
        """Whether imports are traced."""
        return self._locks is not None

    def attach(self) -> None:
        """Start tracing."""
        if type(getattr(_bootstrap, "_module_locks", None)) is dict:
            _imp.acquire_lock()
            try:
                _bootstrap._module_locks = self._locks = _Locks(self._began, self._ended)
            finally:
                _imp.release_lock()

    def detach(self) -> None:
        """Stop tracing."""
        locks, self._locks = self._locks, None
        if locks is None:
            return
        locks.forget()
        _imp.acquire_lock()
        try:
            if _bootstrap._module_locks is locks:
                _bootstrap._module_locks = dict(locks)
        finally:
            _imp.release_lock()
