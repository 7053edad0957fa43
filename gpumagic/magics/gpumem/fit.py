"""``%%gpumem --fit NAME=LOW:HIGH``: the largest value with which the cell fits into memory."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gpumagic.cells.compile import CompiledCell
from gpumagic.cuda.pytorch import allocator, torch_cuda
from gpumagic.errors import DeviceError, SpecError
from gpumagic.magics.delivery import hand_over, say
from gpumagic.magics.gpumem.fit_result import Fit, FitRun
from gpumagic.magics.gpumem.fit_search import PRECISION, RUNS, FitSearch
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.magic_state import MagicState
from gpumagic.magics.option_forms import Options
from gpumagic.memory import oom
from gpumagic.memory.holders import SECONDS, Survey
from gpumagic.memory.limit import LIMIT, memory_limit
from gpumagic.memory.measurement import Measurement
from gpumagic.memory.objects.blocks import UnreadableError
from gpumagic.render.units import bytes_
from gpumagic.system import introspection
from gpumagic.system.shell import Shell
from gpumagic.wording import plural

#: What libraries say that find no memory, beside torch's allocator.
_RAN_OUT = ("CUDA error: out of memory", "STATUS_ALLOC_FAILED")


def run(
    magics: MagicState, options: Options, cell: CompiledCell, name: str, low: int, high: int
) -> Any:
    """Run the cell with values of a variable between two numbers, and hand over the `Fit`.

    Raises:
        SpecError: the cell sets the variable itself, or awaits; or the variable is no number.
        DeviceError: the cell uses no GPU memory.
    """
    _check(cell, name)
    search, shell = FitSearch(low, high), magics.shell
    #: The bytes that were allocated before the first run, and those after each.
    held = [_allocated()]
    with LiveDisplay(shell, quiet=options.quiet, stream=sys.stderr) as live:
        while (value := search.next()) is not None:
            fits = "" if search.largest is None else f"; {search.largest:,} fits"
            run_of = f"run {len(search.runs) + 1} of at most {RUNS}"
            live.text(f"--fit: {run_of}: {name} = {value:,}{fits}")
            try:
                ran, device = _run_once(cell, name, value)
            except BaseException:
                if search.runs:
                    until = f"Until then: {_result(name, search, held).verdict}"
                    say(shell, f"--fit ended at {name} = {value:,}. {until}", quiet=options.quiet)
                raise
            search.runs.append(ran)
            held.append(_allocated())
            # Less where the first run has created what stays: an optimizer's state.
            search.available = _available(device)
            LIMIT.apply()
    if search.largest is not None:
        shell.user_ns[name] = search.largest
    found = _result(name, search, held)
    if not all(each.fits for each in search.runs):
        found = replace(found, notes=(*_held_by_notebook(shell), *found.notes))
    return hand_over(shell, found, options)


def _check(cell: CompiledCell, name: str) -> None:
    cell.check_runs_again("--fit")
    if why := allocator.uncounted():
        raise DeviceError(f"--fit: {why}")
    if (kind := type(cell.globals.get(name, 0))) is not int:
        held_now = f"{name} already holds a {introspection.name_of(kind)}"
        raise SpecError(f"{held_now}; use another name in --fit")


def _allocated() -> int:
    return sum(allocator.held(each)[0] for each in torch_cuda.contexts())


def _available(ordinal: int) -> int:
    """Return the bytes that the code may still allocate on a device."""
    free, _ = torch_cuda.memory_info(ordinal)
    allocated, reserved = allocator.held(ordinal)
    limit = memory_limit(ordinal)
    room = free + reserved
    return min(room, room if limit is None else limit) - allocated


def _run_once(cell: CompiledCell, name: str, value: int) -> tuple[FitRun, int]:
    """Run the cell with a value, which leaves nothing; return the device that it used most, too.

    Raises:
        SpecError: the cell sets the variable itself.
        DeviceError: the cell uses no GPU memory.
    """
    measurement, failed = Measurement(), False
    try:
        # In the notebook's own namespace, which the functions of other cells see.
        with _restored(cell.globals) as namespace:
            local = namespace if cell.locals is namespace else dict(cell.locals)
            namespace[name] = local[name] = value
            replace(cell, locals=local).run(measurement)
            if local.get(name) is not value:
                raise SpecError(f"--fit {name}: the cell sets {name} itself; leave that out")
    except Exception as error:
        linked = [*introspection.linked(error, shown=True)]
        said = " ".join(map(introspection.message, linked))
        if oom.find(error) is None and not any(text in said for text in _RAN_OUT):
            raise
        failed = True
        # Their frames hold what the run had allocated.
        for each in linked:
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = each.__context__ = each.__cause__ = None
        del each
    gc.collect()
    allocator.empty_cache()
    devices = measurement.result.devices
    if not devices:
        raise DeviceError(f"--fit: the cell uses no GPU: {measurement.result.error}")
    most = max(devices, key=lambda ordinal: devices[ordinal].peak)
    # Also where the cell has caught the error itself.
    failed |= any(delta.ooms for delta in devices.values())
    return FitRun(value, None if failed else devices[most].peak), most


@contextmanager
def _restored(namespace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Put the variables back that the block changes or deletes, and delete the new ones."""
    before = dict(namespace)
    try:
        yield namespace
    finally:
        for name in namespace.keys() - before.keys():
            del namespace[name]
        namespace.update(before)
        before.clear()  # a traceback may have this frame


def _held_by_notebook(shell: Shell) -> Iterator[str]:
    """Yield what the notebook's own references hold, which was not there for the cell."""
    try:
        held = Survey.make(shell=shell, seconds=SECONDS).freed()
    except UnreadableError:
        return
    if size := sum(block.size for block in held):
        yield (
            f"{bytes_(size)} was held by the last failure or by outputs: %gpumem free, then --fit "
            "again"
        )


def _result(name: str, search: FitSearch, held: Sequence[int]) -> Fit:
    times, largest, notes = plural(len(search.runs), "time"), search.largest, list[str]()
    # Above what the first run has made for all others: gradients, an optimizer's state.
    lacked = max(held[1:-1], default=0) - held[1]
    if lacked > PRECISION * max((run.peak or 0 for run in search.runs), default=0):
        notes.append(
            f"Earlier runs left {bytes_(held[-1] - held[0])} allocated. Free it, and a larger "
            "value may fit. %gpumem vars shows what holds it"
        )
    left = "all" if largest is None else f"{name} is left at {largest:,}, all other"
    notes += [
        f"{left} variables are as before",
        f"the cell ran {times}; what it changes in place stays changed, as a model that it trains",
    ]
    return Fit(name, largest, tuple(search.runs), search.is_exact, tuple(notes))
