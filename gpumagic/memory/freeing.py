"""Free GPU memory: delete variables, and what the notebook and libraries keep without need."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain

from gpumagic.cuda import dead_context, no_gpu
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.memory.holders import Survey
from gpumagic.memory.objects.blocks import UnreadableError
from gpumagic.memory.objects.garbage import objects_of, running_threads
from gpumagic.memory.objects.ipython_references import (
    EXCEPTION,
    LAST,
    LOCAL,
    NotebookReferences,
    Root,
)
from gpumagic.memory.objects.walk import collector_paused
from gpumagic.render.units import bytes_
from gpumagic.results.memory.freed import Freed, FreeStep, Held
from gpumagic.system import introspection, text
from gpumagic.system.shell import Shell
from gpumagic.wording import did_you_mean, listed

NO_DEBUG = "the last exception is gone: %debug and %tb have nothing to show"


@collector_paused()
def free(shell: Shell, names: Sequence[str] = (), local: Container[str] = ()) -> Freed:
    """Delete ``names`` and the notebook's own references, collect garbage, and empty the cache.

    No other name is deleted. Of the notebook's references those stay that hold no GPU memory.
    ``Out`` among the names changes nothing: it is one of these references. ``local`` has the names
    of the function that calls; ``x*`` stands for the notebook's variables that begin so.

    Raises:
        SpecError: no such variable, or it holds no GPU memory where CUDA is in use; nothing is done
            then.
        DeviceError: CUDA has failed in this process; nothing is done then.
    """
    notebook = NotebookReferences(shell)
    names = [name for name in dict.fromkeys(names) if name != "Out"]
    _check(notebook, names, local)
    dead = dead_context.check()
    if dead is not None:
        raise DeviceError(f"nothing was freed or deleted: {dead}; %gpu restart starts it again")
    before, steps, notes = _held(), list[FreeStep](), list[str]()
    survey, unknown = _survey(shell, names)
    if survey is None:  # the same notebook runs with a GPU: what it names goes
        names, holding = [name for name in names if name in notebook.namespace], list[Root]()
    else:
        names = _holding(survey, names, notebook.namespace)
        holding = [root for root in survey.holding() if root.by_notebook]
        notes += _shared(survey, names)
    for name in names:
        del notebook.namespace[name]
    if names:
        steps.append(FreeStep(f"delete {', '.join(names)}", _held()))
    if holding:
        places = dict.fromkeys(LAST if r.kind in (LOCAL, EXCEPTION) else r.name for r in holding)
        if notebook.release(holding):
            notes.append(NO_DEBUG)
        steps.append(FreeStep(f"forget {', '.join(places)}", _held()))
    _collect()
    steps.append(FreeStep("collect garbage", _held()))
    try:
        _empty_caches(notebook)
    except RuntimeError as error:
        done = f"deleted: {', '.join(names)}" if names else "nothing was deleted"
        raise DeviceError(
            f"the cache was not emptied ({done}): {text.reason(error)}; "
            "if CUDA goes on to fail, %gpu restart starts it again"
        ) from None
    steps.append(FreeStep("empty the caches", _held()))
    notes += [unknown] if survey is None else _staying(shell)
    return Freed(tuple(steps), before, tuple(names), tuple(notes), allocator.uncounted())


def _survey(shell: Shell, names: Sequence[str]) -> tuple[Survey | None, str]:
    """Return who holds what; or None, and why that is not known."""
    if not torch_cuda.contexts():
        return None, f"no GPU memory to free: {no_gpu.reason()}"
    try:
        # What the notebook itself holds is known without a look at the variables.
        return Survey.make(None if names else {}, shell), ""
    except UnreadableError as error:
        return None, f"what the notebook itself keeps was left alone: {error}"


def _shared(survey: Survey, names: Sequence[str]) -> Iterator[str]:
    """Yield a note where other variables hold memory of ``names``, too: it is not freed."""
    others = {
        name: [r.name for r in survey.holding([name]) if not r.by_notebook and r.name not in names]
        for name in names
    }
    if holders := dict.fromkeys(chain(*others.values())):
        staying = ", ".join(name for name in names if others[name])
        yield f"memory of {staying} that is also held by {', '.join(holders)} stays"


def _holding(survey: Survey, names: Sequence[str], namespace: Container[str]) -> list[str]:
    """Return the variables that names and patterns stand for, all of which hold GPU memory.

    Those of the notebook's ``namespace``: what a module of the user's holds is no variable of it.

    Raises:
        SpecError: one holds none.
    """
    roots = (root for root in survey.holding() if not root.by_notebook)
    held = [root.name for root in roots if root.name in namespace]
    found = {name: [each for each in held if fnmatchcase(each, name)] for name in names}
    for name, variables in found.items():
        if not variables:
            what = f"{name!r} holds no GPU memory; del {name} deletes it"
            if not name.isidentifier():
                none = f"no variable of the notebook like {name!r} holds GPU memory"
                what = f"{none}; %gpumem vars shows which do"
            raise SpecError(f"%gpumem free: {what}")
    return [*dict.fromkeys(chain.from_iterable(found.values()))]


def _check(notebook: NotebookReferences, names: Sequence[str], local: Container[str]) -> None:
    """Check that all names are of variables that can be deleted, or patterns.

    Raises:
        SpecError: one is not.
    """
    for name in names:
        if name in local:
            raise SpecError(
                f"%gpumem free: {name!r} is a variable of the function that calls it, which no "
                f"magic can delete; write del {name}, and then %gpumem free"
            )
        if {"*", "?"} & {*name} and name.replace("*", "x").replace("?", "x").isidentifier():
            continue
        if name not in notebook.namespace:
            namespace = introspection.names(notebook.namespace)
            users = [each for each, value in namespace if not notebook.is_notebooks(each, value)]
            part = f"; of a part: del {name}, then %gpumem free"
            hint = did_you_mean(name, users) if name.isidentifier() else part
            raise SpecError(f"%gpumem free: there is no variable {name!r}{hint}")
        if notebook.is_notebooks(name, notebook.namespace[name]):
            raise SpecError(
                f"%gpumem free: {name!r} is the notebook's own; without it, %gpumem free deletes "
                "the notebook's references"
            )


def _collect() -> None:
    """Collect garbage until that frees nothing: what garbage held in C++ may be garbage then."""
    held = None
    while held != (held := _held()):
        gc.collect()


def _empty_caches(notebook: NotebookReferences) -> None:
    """Empty the allocator's cache, and what libraries keep and make again when they need it.

    Not cuBLAS's work space where code may use it without asking torch for it again: a CUDA graph
    has its address, and a thread may be about to start a kernel with it.
    """
    if torch_cuda.contexts():
        torch_cuda.module().clear_autocast_cache()
        graphs = objects_of(torch_cuda.module().cuda.CUDAGraph)
        if not graphs and next(running_threads(notebook.cell_of), None) is None:
            torch_cuda.c_functions()._cuda_clearCublasWorkspaces()
    allocator.empty_cache()


def _staying(shell: Shell) -> Iterator[str]:
    """Yield what is still allocated, and who holds it; and what stays reserved."""
    survey, sizes = Survey.make(shell=shell), Counter[str]()
    account = survey.result(survey.unreferenced(collected=True))
    for device in account.devices.values():
        sizes.update({holder.name: holder.bytes for holder in device.holders})
        sizes.update(device.unreferenced())
    for ordinal, size in allocator.in_private_pools().items():
        if size:
            yield (
                f"cuda:{ordinal}: {bytes_(size)} stay reserved in private pools, of CUDA graphs or "
                "torch.cuda.MemPool, until those are deleted"
            )
    held = [f"{name} {bytes_(size)}" for name, size in sizes.most_common() if size]
    if held:
        yield f"still allocated: {listed(held, 5)}"
    yield from account.notes


def _held() -> dict[int, Held]:
    """Return what torch's allocator holds, by ordinal; nothing where it does not count."""
    try:
        return {ordinal: Held(*allocator.held(ordinal)) for ordinal in torch_cuda.contexts()}
    except RuntimeError:
        return {}
