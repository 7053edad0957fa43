"""Name the memory that stays on the devices when the rest is parked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpumagic.cuda import storages
from gpumagic.cuda.storages import plain_functions
from gpumagic.memory import code_values
from gpumagic.memory.attribution import ELSEWHERE, Survey
from gpumagic.memory.object_graph import bits
from gpumagic.memory.parkable_storages import FoundStorages
from gpumagic.memory.snapshot import read_segments
from gpumagic.render.units import bytes_
from gpumagic.results.parking import StayingMemory
from gpumagic.system import introspection
from gpumagic.system.text import listed


def staying_memory(found: FoundStorages, shell: Any = None) -> dict[int, tuple[StayingMemory, ...]]:
    """Return by CUDA ordinal what stays, by the reason, with the variables that lead to it.

    Where no variable does: the line that allocated it, if torch has recorded that.
    """
    stays: dict[int, dict[str, list[int]]] = {ordinal: {} for ordinal in found.blocks.allocated}
    for place, reason in found.staying:
        stays[found.blocks.all[place].device].setdefault(reason, []).append(place)
    names = _names(found, shell) if found.staying else {}
    result = {}
    for ordinal, reasons in stays.items():
        rows = []
        for reason, places in reasons.items():
            sizes: dict[str, int] = {}
            for place in places:
                name = names.get(found.blocks.all[place].address)
                if name is not None:
                    sizes[name] = sizes.get(name, 0) + found.blocks.all[place].size
            largest = sorted(sizes, key=lambda name: -sizes[name])
            size = sum(found.blocks.all[place].size for place in places)
            rows.append(StayingMemory(reason, size, len(places), tuple(largest)))
        result[ordinal] = tuple(sorted(rows, key=lambda row: -row.size))
    return result


def _names(found: FoundStorages, shell: Any) -> dict[int, str]:
    """Return by a block's address the variable that leads to it, or the line that allocated it."""
    survey = Survey.make(shell=shell)
    names = {}
    for place, block in enumerate(survey.blocks.all):
        owners = survey.walked.owners.get(place, 0)
        roots = [survey.roots[i].name for i in bits(owners)]
        known = next((name for name in roots if name != ELSEWHERE), None)
        if known is None:
            site = survey.site(block)
            known = None if site is None else f"allocated at {site}"
        if known is not None:
            names[block.address] = known
    return names


def received_memory(found: FoundStorages, names: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line for each storage of another process that this one has received."""
    find, lines = found.blocks.finder(storages=True), []
    with plain_functions():
        for storage in storages.shared_storages():
            if storage.device.type != "cuda" or find(storage) is not None:
                continue
            known = [
                name
                for name, value in introspection.names(names)
                if code_values.is_tensor(value)
                and (own := storages.storage_of(value)) is not None
                and own._cdata == storage._cdata
            ]
            size = f"{bytes_(storage.nbytes())} on {storage.device}"
            what = f"{listed(known, 4)} ({size})" if known else size
            lines.append(f"{what}: another process's memory, received from it, stays as it is")
    return tuple(lines)


def unused_parts() -> dict[int, int]:
    """Return by CUDA ordinal the free bytes of the segments in which memory is allocated."""
    unused: dict[int, int] = {}
    for segment in read_segments():
        allocated = sum(block.size for block in segment.blocks if block.allocated)
        if allocated:
            unused[segment.device] = unused.get(segment.device, 0) + segment.size - allocated
    return unused
