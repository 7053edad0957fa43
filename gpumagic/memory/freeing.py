"""Free GPU memory: variables, the notebook's references, garbage, the allocator's cache."""

from __future__ import annotations

import difflib
import gc
import sys
import types
from collections.abc import Collection, Sequence
from typing import Any

from gpumagic.cuda import failure, torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.memory.allocator_blocks import UnreadableError
from gpumagic.memory.attribution import Survey
from gpumagic.memory.notebook_references import EXCEPTION, LAST, LOCAL, NotebookReferences
from gpumagic.memory.object_graph import Root
from gpumagic.results import Freed, FreeStep
from gpumagic.system import introspection, text

NO_DEBUG = "the last exception is gone: %debug and %tb have nothing to show"


def free(shell: Any, names: Sequence[str] = (), *, dry_run: bool = False) -> Freed:
    """Delete ``names`` and the notebook's own references, collect garbage, and empty the cache.

    No other variable is changed. With ``dry_run`` nothing is changed at all, and the figures are
    estimates; how much is garbage is not known before.

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
    if not torch_cuda.contexts():
        for name in () if dry_run else names:
            shell.del_var(name, by_name=True)
        return Freed(error=failure.why_no_gpu(), dry_run=dry_run)
    try:
        survey = Survey.make(shell=shell, certain=True)
    except UnreadableError as error:
        return Freed(error=str(error))
    except RuntimeError as error:
        raise _failure("nothing was freed or deleted", error) from None
    holding = survey.holding_any(lambda root: root.by_notebook)
    places = dict.fromkeys(LAST if r.kind in (LOCAL, EXCEPTION) else r.name for r in holding)
    labels = (_label("delete", names), _label("forget", list(places)))
    if dry_run:
        return _expected(survey, names, labels)
    notes = _not_freed(survey, names, dry_run=False)
    del survey
    steps = _Steps()
    for name in names:
        shell.del_var(name, by_name=True)
    steps.add(labels[0])
    failed = notebook.release(holding)
    del holding
    steps.add(labels[1])
    gc.collect()
    steps.add("collect garbage")
    try:
        torch_cuda.empty_cache()
    except RuntimeError as error:
        done = f"deleted: {', '.join(names)}" if names else "nothing was deleted"
        raise _failure(f"the cache was not emptied ({done})", error) from None
    steps.add("empty the cache")
    return steps.result((*notes, NO_DEBUG) if failed else notes)


def _failure(what: str, error: RuntimeError) -> DeviceError:
    """Return an error of CUDA in one line; most of them end with the process only."""
    return DeviceError(
        f"{what}: {text.reason(error)}; if CUDA goes on to fail, %gpu reset --restart starts it "
        "again"
    )


def _check(notebook: NotebookReferences, names: Sequence[str]) -> None:
    modules = {id(module) for module in list(sys.modules.values())}
    for name in names:
        if name not in notebook.namespace:
            users = [
                each
                for each, value in notebook.namespace.items()
                if not notebook.is_notebooks(each, value)
            ]
            near = difflib.get_close_matches(name, users, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SpecError(f"%gpumem free: there is no variable {name!r}{hint}")
        value = notebook.namespace[name]
        if notebook.is_notebooks(name, value):
            raise SpecError(
                f"%gpumem free: {name!r} is the notebook's own; without it, %gpumem free deletes "
                "the notebook's references"
            )
        if introspection.is_a(value, types.ModuleType) and id(value) in modules:
            raise SpecError(
                f"%gpumem free: {name!r} is a module, and stays loaded without that name; "
                "%gpumem vars lists the variables that hold memory"
            )


def _is_of(root: Root, names: Collection[str]) -> bool:
    """Return whether a root is a variable in ``names``, or one of a module of such a name."""
    return not root.by_notebook and root.name.partition(".")[0] in names


def _not_freed(survey: Survey, names: Sequence[str], dry_run: bool) -> tuple[str, ...]:
    """Return a line for each of ``names`` whose memory is not all freed: what else holds it."""
    lines = []
    for name in names:
        held, rest, others = survey.beside(
            lambda root, name=name: _is_of(root, (name,)),  # type: ignore[misc]
            lambda root: root.by_notebook or _is_of(root, names),
        )
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        who = f"{', '.join(others[:3])}{more} {'hold' if len(others) > 1 else 'holds'}"
        if not held:
            line = f"{name} holds no GPU memory" if dry_run else "it held no GPU memory"
        elif not rest:
            continue
        elif len(rest) < len(held):
            line = f"{who} some of {name}'s memory" if dry_run else f"{who} some of its memory"
        else:
            line = f"{who} the same memory{f' as {name}' if dry_run else ''}"
        lines.append(line if dry_run else f"deleted {name}; {line}")
    return tuple(lines)


def _label(verb: str, names: Sequence[str]) -> str | None:
    """Return ``delete x, y``; None where there is nothing to do."""
    return f"{verb} {', '.join(names)}" if names else None


class _Steps:
    """The memory that each step freed, by the allocator's counters."""

    def __init__(self) -> None:
        self._before = self._now = _counters()
        self._steps: list[FreeStep] = []

    def add(self, what: str | None) -> None:
        now = _counters()
        if what is not None:
            self._steps.append(
                FreeStep(what, *(_minus(b, n) for b, n in zip(self._now, now, strict=True)))
            )
            self._now = now

    def result(self, notes: tuple[str, ...]) -> Freed:
        (allocated, reserved), (allocated_now, reserved_now) = self._before, self._now
        steps = tuple(self._steps)
        return Freed(steps, allocated, allocated_now, reserved, reserved_now, notes=notes)


_Counters = tuple[dict[int, int], dict[int, int]]


def _counters() -> _Counters:
    """Return allocated and reserved bytes by ordinal."""
    held = {ordinal: torch_cuda.memory_held(ordinal) for ordinal in torch_cuda.contexts()}
    return {i: each for i, (each, _) in held.items()}, {i: each for i, (_, each) in held.items()}


def _minus(before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    return {i: before[i] - now for i, now in after.items() if i in before and before[i] != now}


def _expected(survey: Survey, names: Sequence[str], labels: tuple[str | None, str | None]) -> Freed:
    """Return the figures of a dry run."""
    blocks = survey.blocks
    before = (dict(blocks.allocated), dict(blocks.reserved))
    by_names = survey.held_by(lambda root: _is_of(root, names))
    by_all = survey.held_by(lambda root: root.by_notebook or _is_of(root, names))
    middle = blocks.without(by_names)[0]
    after = blocks.without(by_all)
    steps = []
    if labels[0] is not None:
        steps.append(FreeStep(labels[0], _minus(before[0], middle)))
    if labels[1] is not None:
        steps.append(FreeStep(labels[1], _minus(middle, after[0])))
    steps.append(FreeStep("collect garbage"))
    steps.append(FreeStep("empty the cache", {}, _minus(before[1], after[1])))
    failed = survey.holding_any(lambda root: root.kind in (LOCAL, EXCEPTION))
    notes = ["nothing was done; without --dry-run it is"]
    notes += _not_freed(survey, names, dry_run=True)
    if failed:
        notes.append("the last exception would be gone, and %debug would have nothing to show")
    if not blocks.exact or any(segment.expandable for segment in blocks.segments):
        notes.append("what goes back to the device is a lower bound")
    return Freed(
        tuple(steps), before[0], after[0], before[1], after[1], dry_run=True, notes=tuple(notes)
    )
