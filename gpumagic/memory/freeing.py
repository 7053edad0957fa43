"""Free GPU memory: variables, the notebook's references, garbage, the allocator's cache."""

from __future__ import annotations

import difflib
import gc
from collections.abc import Sequence
from typing import Any

from gpumagic.cuda import failure, torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.memory.blocks import UnreadableError
from gpumagic.memory.holders import Survey
from gpumagic.memory.roots import EXCEPTION, LAST, LOCAL, NotebookReferences
from gpumagic.memory.walk import Name
from gpumagic.results.allocator import Freed, FreeStep
from gpumagic.system import introspection, text

NO_DEBUG = "the last exception is gone: %debug and %tb have nothing to show"


def free(shell: Any, names: Sequence[str] = ()) -> Freed:
    """Delete ``names`` and the notebook's own references, collect garbage, and empty the cache.

    No other variable is changed. Of the notebook's references those stay that hold no GPU memory.

    Raises:
        SpecError: no such variable; nothing is done then.
        DeviceError: CUDA has failed in this process; nothing is done then.
    """
    notebook = NotebookReferences(shell)
    _check(notebook, names)
    dead = failure.check_context()
    if dead is not None:
        raise DeviceError(
            f"nothing was freed or deleted: CUDA has failed in this process ({dead}); "
            "%gpu reset --restart starts it again"
        )
    steps = _Steps()
    holding, notes = _survey(shell, names)
    for name in names:
        shell.del_var(name, by_name=True)
    if names:
        steps.add(f"delete {', '.join(names)}")
    if holding:
        places = dict.fromkeys(LAST if r.kind in (LOCAL, EXCEPTION) else r.name for r in holding)
        if notebook.release(holding):
            notes.append(NO_DEBUG)
        steps.add(f"forget {', '.join(places)}")
    gc.collect()
    steps.add("collect garbage")
    try:
        torch_cuda.empty_cache()
    except RuntimeError as error:
        done = f"deleted: {', '.join(names)}" if names else "nothing was deleted"
        raise DeviceError(
            f"the cache was not emptied ({done}): {text.reason(error)}; "
            "if CUDA goes on to fail, %gpu reset --restart starts it again"
        ) from None
    steps.add("empty the cache")
    return steps.result(tuple(names), notes)


def _check(notebook: NotebookReferences, names: Sequence[str]) -> None:
    for name in names:
        if name not in notebook.namespace:
            namespace = introspection.names(notebook.namespace)
            users = [each for each, value in namespace if not notebook.is_notebooks(each, value)]
            near = difflib.get_close_matches(name, users, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SpecError(f"%gpumem free: there is no variable {name!r}{hint}")
        if notebook.is_notebooks(name, notebook.namespace[name]):
            raise SpecError(
                f"%gpumem free: {name!r} is the notebook's own; without it, %gpumem free deletes "
                "the notebook's references"
            )


def _survey(shell: Any, names: Sequence[str]) -> tuple[list[Name], list[str]]:
    """Return the notebook's references that hold GPU memory, and what keeps that of ``names``."""
    if not torch_cuda.contexts():
        return [], [f"no GPU memory to free: {failure.why_no_gpu()}"]
    try:
        survey = Survey.make(shell=shell, certain=True)
    except UnreadableError as error:
        return [], [f"what the notebook itself keeps was left alone: {error}"]

    def is_going(root: Name) -> bool:
        return root.by_notebook or root.name in names

    notes = []
    for name in names:
        others = survey.beside(lambda root, name=name: root.name == name, is_going)  # type: ignore[misc]
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            hold = "hold" if len(others) > 1 else "holds"
            notes.append(f"{', '.join(others[:3])}{more} {hold} memory of {name}, too")
    return survey.holding_any(lambda root: root.by_notebook), notes


class _Steps:
    """The memory that each step freed, by the allocator's counters."""

    def __init__(self) -> None:
        self._before = self._now = _counters()
        self._steps: list[FreeStep] = []

    def add(self, what: str) -> None:
        now = _counters()
        pairs = zip(self._now, now, strict=True)
        self._steps.append(FreeStep(what, *(_minus(before, after) for before, after in pairs)))
        self._now = now

    def result(self, deleted: tuple[str, ...], notes: list[str]) -> Freed:
        (allocated, reserved), (allocated_now, reserved_now) = self._before, self._now
        steps = tuple(self._steps)
        figures = (allocated, allocated_now, reserved, reserved_now)
        return Freed(steps, *figures, deleted, tuple(notes))


def _counters() -> tuple[dict[int, int], dict[int, int]]:
    """Return allocated and reserved bytes by ordinal; none of an allocator that counts nothing."""
    try:
        held = {ordinal: torch_cuda.memory_held(ordinal) for ordinal in torch_cuda.contexts()}
    except RuntimeError:
        held = {}
    return {i: each for i, (each, _) in held.items()}, {i: each for i, (_, each) in held.items()}


def _minus(before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    return {i: before[i] - now for i, now in after.items() if i in before and before[i] != now}
