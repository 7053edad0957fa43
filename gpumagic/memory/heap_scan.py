"""Find what holds the blocks that no variable references, among all objects of the process."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from gpumagic.cells import tracebacks
from gpumagic.cuda import torch_cuda
from gpumagic.cuda.storages import plain_functions, tensor_base
from gpumagic.memory.allocator_blocks import Blocks
from gpumagic.memory.snapshot import Block
from gpumagic.results import Site
from gpumagic.system import introspection

#: The ids of types: to compare a type may run a metaclass's code.
_NAMELESS = {id(kind) for kind in (dict, list, tuple, set, types.CellType)}


def summed(found: Iterable[tuple[Block, str]]) -> dict[int, tuple[Site, ...]]:
    """Return the sites of each device, the largest first."""
    sums: dict[tuple[int, str], list[int]] = {}
    for block, where in found:
        held = sums.setdefault((block.device, where), [0, 0])
        held[0] += block.requested
        held[1] += 1
    sites: dict[int, tuple[Site, ...]] = {}
    for (device, where), (size, number) in sorted(sums.items(), key=lambda item: -item[1][0]):
        sites[device] = (*sites.get(device, ()), Site(where, size, number))
    return sites


def scanned(
    blocks: Blocks, rest: Sequence[int], cell_of: tracebacks.CellOf
) -> dict[int, tuple[Site, ...]]:
    """Return what no variable references, by its other referrers."""
    torch = torch_cuda.loaded()
    wanted, find = set(rest), blocks.finder()
    #: In parallel lists, so that only this one refers to the tensors.
    tensors: list[Any] = []
    places: list[int] = []
    with plain_functions():
        for thing in gc.get_objects():
            if torch is None or not introspection.is_a(thing, torch.Tensor):
                continue
            try:
                block = find(thing)
            except Exception:  # no storage of its own
                continue
            if block is not None and block in wanted:
                tensors.append(thing)
                places.append(block)
    named = _referrers(tensors, cell_of)
    (plain,) = map(sys.getrefcount, [object()])
    counts = list(map(sys.getrefcount, tensors))
    found: dict[int, str] = {}
    for thing, block, count in zip(tensors, places, counts, strict=True):
        where = named.get(id(thing))
        if where is None:
            # C++ that refers to a tensor may hold one reference to its Python object.
            alone = count <= plain or (count == plain + 1 and _shared(thing))
            where = "no Python object" if alone else "objects that Python does not list"
        found.setdefault(block, where)
    return summed((blocks.all[block], f"held by {where}") for block, where in found.items())


def _shared(tensor: Any) -> bool:
    count = getattr(tensor_base(), "_use_count", None)
    return count is None or bool(count(tensor) > 1)


def _variables(cell_of: tracebacks.CellOf) -> dict[int, str]:
    """Return by `id` the displayed names of the variables of functions running in this thread."""
    found: dict[int, str] = {}
    for frame in tracebacks.stack(sys._getframe()):
        module = frame.f_globals.get("__name__")
        if type(module) is str and module.partition(".")[0] == __package__.partition(".")[0]:
            continue  # this scan itself
        where = tracebacks.described(frame, frame.f_lineno, cell_of)
        for name, value in introspection.running_variables(frame):
            found.setdefault(id(value), f"{name} ({where}, which is running)")
    return found


#: The most referrers without a name that are followed from a tensor.
_STEPS = 5


def _referrers(things: list[Any], cell_of: tracebacks.CellOf) -> dict[int, str]:
    """Return by `id` the nearest referrer with a name of each of the ``things``."""
    modules = introspection.module_namespaces()
    found: dict[int, str] = {}
    nameless: dict[int, str] = {}
    seen = set(map(id, things))
    variables = _variables(cell_of)
    found.update((i, variables[i]) for i in seen if i in variables)
    #: In parallel: the objects whose referrers are wanted, and the ids that each leads to.
    held, leads = things, [{id(thing)} for thing in things]
    for _ in range(_STEPS):
        places = {id(thing): place for place, thing in enumerate(held)}
        above: list[Any] = []
        above_leads: list[set[int]] = []
        for holder in _referring(held):
            inside = [places[id(e)] for e in gc.get_referents(holder) if id(e) in places]
            to = {each for place in inside for each in leads[place] if each not in found}
            if id(holder) in seen or not to:
                continue
            seen.add(id(holder))
            where = _described(holder, places, modules, cell_of)
            if id(holder) in variables:
                found.update((each, variables[id(holder)]) for each in to)
            elif id(holder) not in modules and id(type(holder)) in _NAMELESS:
                above.append(holder)
                above_leads.append(to)
                nameless.update((each, where) for each in to - nameless.keys())
            else:
                found.update((each, where) for each in to)
        held, leads = above, above_leads
    return {**nameless, **found}


def _referring(things: list[Any]) -> list[Any]:
    """Return the referrers of ``things``, except the list itself and frames."""
    found = gc.get_referrers(*things) if things else []
    return [f for f in found if f is not things and type(f) is not types.FrameType]


def _described(
    holder: Any, held: Container[int], modules: Mapping[int, str], cell_of: tracebacks.CellOf
) -> str:
    """Return the displayed name of an object that refers to one of those with the ids ``held``."""
    module = modules.get(id(holder))
    if module is not None:
        name = next((k for k, v in holder.items() if id(v) in held), "?")
        return f"{module}.{name}"
    if type(holder) is types.FunctionType:
        code = holder.__code__
        where = tracebacks.place(code.co_filename, code.co_firstlineno, cell_of)
        return f"the function {holder.__qualname__} ({where})"
    if introspection.is_a(holder, type):
        return f"the class {introspection.name_of(holder)}"
    return f"a {introspection.name_of(type(holder))}"
