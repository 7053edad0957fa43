"""Keep functions that wrap torch's away from torch's compiler.

The compiler has tables of torch's functions, which it compares by identity, and reads classes of
torch's while it compiles: so nothing may be wrapped when it is imported and while it compiles.
Where it has compiled a function, it also compiles what that one calls behind a graph break: so the
code of wrappers is marked as code that is not to be compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

_COMPILER = "torch._dynamo"

#: Those in use, in the order in which they wrap: what is wrapped twice is unwrapped from outside.
_in_use: list[CompilerHooks] = []


class CompilerHooks:
    """Calls ``wrap`` from `start` to `stop`, and ``unwrap`` while torch's compiler is at work.

    That is when it is imported and while it compiles. ``modules`` have the code of wrappers and of
    what they call. Several may be in use at once, and end in any order.
    """

    def __init__(
        self, unwrap: Callable[[], None], wrap: Callable[[], None], modules: Sequence[ModuleType]
    ) -> None:
        self._unwrap = unwrap
        self._wrap = wrap
        self._modules = modules
        #: torch's handler of callbacks, which has ours.
        self._handler: Any = None
        self._is_imported = False
        #: How many compilations are under way.
        self._compilations = 0

    def start(self) -> None:
        """Wrap where that is safe, and watch the imports."""
        sys.meta_path.insert(0, self)
        _in_use.append(self)
        try:
            self.attach()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Unwrap, and remove everything that `start` and `attach` have added."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        _unwrap_all()
        if self in _in_use:
            _in_use.remove(self)
        self._detach()
        self._compilations = 0
        _wrap_again()

    def _detach(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None and self._begin in handler.start_callbacks:
            handler.remove_start_callback(self._begin)
            handler.remove_end_callback(self._end)

    def find_spec(self, name: str, *_: Any) -> None:
        """Unwrap everything before the compiler is imported; an entry of ``sys.meta_path``."""
        if name == _COMPILER:
            self._is_imported = True
            _unwrap_all()

    def is_attached(self) -> bool:
        """Return whether the compiler has the callbacks, or is not loaded."""
        if self._is_imported:
            return False
        if self._handler is None:
            return _COMPILER not in sys.modules
        return self._begin in self._handler.start_callbacks  # torch._dynamo.reset() removes them

    def attach(self) -> bool:
        """Give the compiler the callbacks, mark the code and wrap; return whether that is safe."""
        _unwrap_all()
        self._is_imported = False
        self._detach()
        if _COMPILER in sys.modules and not self._register():
            return False
        _wrap_all()
        return True

    def _register(self) -> bool:
        callbacks = sys.modules.get(f"{_COMPILER}.callback")
        handler = getattr(callbacks, "callback_handler", None)
        skip = getattr(sys.modules.get(f"{_COMPILER}.eval_frame"), "skip_code", None)
        if handler is None or skip is None:  # another version of torch, or not yet imported
            return False
        for code in _codes_of(self._modules):
            skip(code)
        handler.register_start_callback(self._begin)
        handler.register_end_callback(self._end)
        self._handler, self._compilations = handler, 0
        return True

    def _begin(self, *_: Any) -> None:
        self._compilations += 1
        _unwrap_all()

    def _end(self, *_: Any) -> None:
        self._compilations = max(self._compilations - 1, 0)
        _wrap_again()


def _unwrap_all() -> None:
    for each in reversed(_in_use):
        each._unwrap()


def _wrap_all() -> None:
    if not any(each._compilations for each in _in_use):
        for each in _in_use:
            if each.is_attached():
                each._wrap()


def _wrap_again() -> None:
    try:
        _wrap_all()
    except Exception:  # the cell has replaced a class of torch's: what it does goes on
        _unwrap_all()


def _codes_of(modules: Iterable[ModuleType]) -> Iterator[CodeType]:
    """Yield the code of all functions that modules define, and of those in them."""
    for module in modules:
        for code in _functions(module):
            yield from _with_nested(code)


def _functions(module: ModuleType) -> Iterator[CodeType]:
    for found in vars(module).values():
        if getattr(found, "__module__", None) != module.__name__:
            continue
        for each in vars(found).values() if isinstance(found, type) else (found,):
            if isinstance(each, FunctionType):
                yield each.__code__


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _with_nested(each)
