"""Functions and methods of torch that are replaced for a while by ones that call them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple


class _Wrapped(NamedTuple):
    """A function that is wrapped: where it was found, and what to put back."""

    owner: Any
    name: str
    wrapper: Any
    #: What the owner had itself; None where it had inherited the function.
    original: Any


class _Method:
    """A wrapped method: called where an object has it, and the method itself in the class.

    There torch asks for it to hand it to subclasses of tensors, which compare it by identity.
    """

    def __init__(self, method: Any, call: Callable[..., Any]) -> None:
        self._method = method
        self._call = call

    @property
    def call(self) -> Callable[..., Any]:
        """What is called where an object has the method."""
        return self._call

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the method: those who read the class's attributes, such as mocks, expect that."""
        return self._method(*arguments, **named)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._method if instance is None else MethodType(self._call, instance)


def current(owner: Any, name: str) -> Any:
    """Return what is called now as a function of a module, or a method of a class's objects.

    Raises:
        AttributeError: there is none.
    """
    found = vars(owner).get(name)
    return found.call if isinstance(found, _Method) else getattr(owner, name)


class WrappedFunctions:
    """The functions that are wrapped, until they are restored."""

    def __init__(self) -> None:
        self._wrapped: list[_Wrapped] = []
        #: Whether there are any; an attribute, since wrappers ask for it at each call.
        self.are_any = False

    def wrap(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace a function of a module, or a method of a class, by ``call``."""
        function = getattr(owner, name)
        functools.update_wrapper(call, function)
        original = vars(owner).get(name)
        wrapper = _Method(function, call) if isinstance(owner, type) else call
        setattr(owner, name, wrapper)
        self._wrapped.append(_Wrapped(owner, name, wrapper, original))
        self.are_any = True

    def restore(self) -> None:
        """Put everything back, the last one first."""
        wrapped, self._wrapped = self._wrapped, []
        self.are_any = False
        for each in reversed(wrapped):
            if vars(each.owner).get(each.name) is not each.wrapper:
                continue  # the user has wrapped it meanwhile: ours stays and only passes calls on
            if each.original is None:
                delattr(each.owner, each.name)
            else:
                setattr(each.owner, each.name, each.original)
