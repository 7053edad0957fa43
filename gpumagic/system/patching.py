"""Replace an attribute of a foreign object for a while, beside others that do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patch(owner: Any, name: str, new: object) -> Callable[[], None]:
    """Set an attribute; return what undoes that, unless somebody has set another one since.

    An attribute that was the class's is deleted then; one that was the object's own is put back.
    """
    own, old = name in vars(owner), getattr(owner, name)
    setattr(owner, name, new)

    def undo() -> None:
        if vars(owner).get(name) is not new:
            return
        if own:
            setattr(owner, name, old)
        else:
            delattr(owner, name)

    return undo
