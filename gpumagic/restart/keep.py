"""Keep variables across a restart: one pickle of all of them, so that what they share stays shared.

The bytes of large arrays and of tensors are not in the pickle but in a file, each storage once.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import linecache
import shutil
import sys
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpumagic.cuda import driver, torch_cuda
from gpumagic.cuda.process_state import STATE
from gpumagic.cuda.storages import as_bytes, plain_functions, storage_address
from gpumagic.errors import RestartError
from gpumagic.restart import refused, settings, trial
from gpumagic.restart.devices import Devices
from gpumagic.restart.handover import Kept, Variable
from gpumagic.restart.held import Content, Held, type_name
from gpumagic.restart.pickler import Pickler
from gpumagic.restart.unpickler import Unpickler, on_host
from gpumagic.system import host_memory, text
from gpumagic.system.introspection import is_a
from gpumagic.system.shell import Shell
from gpumagic.wording import noun, plural

if TYPE_CHECKING:
    pass

#: So many looks at which variables have no pickle: a function of one, a function of that, …
_LOOKS = 4
#: A folder without room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: The bytes that objects take for one of their pickle.
_GROWS = 4

# --- in the old process ---------------------------------------------------------------------------


def write(
    shell: Shell,
    names: Iterable[str],
    extension: str,
    environment: Mapping[str, str],
    *,
    optional: Container[str] = (),
    force: bool = False,
    again: str = "… --force",
    say: Callable[[str], None] = print,
) -> tuple[IO[bytes], Kept]:
    """Write variables to a file without a name; `Kept.failed` has those that cannot be kept.

    A child process with the new environment has loaded all that is kept, and ``extension``.

    Raises:
        RestartError: some that are not ``optional`` cannot be kept, and neither ``force`` is given
            nor has CUDA failed; the file cannot be written, or Python does not start in that
            environment.
    """
    left, failed, held = list(names), dict[str, str](), Held(shell.user_ns)
    apart, looks = False, 0
    try:
        file = tempfile.TemporaryFile(prefix="gpumagic-")  # noqa: SIM115 - the next process's
        while True:
            found = trial.Outcome()
            file.seek(0)
            kept, pickler, bad = _pickled(shell, left, held, file, apart=apart)
            absent = {id(shell.user_ns[name]) for name in bad if name in left}
            if absent and absent != held.absent and looks < _LOOKS:
                held.absent, looks = absent, looks + 1  # functions do without these
                continue
            if not bad:
                _check_room(kept, environment)
                _write_data(file, kept, pickler)
                if left:
                    say(f"trying to load {plural(len(left), 'variable')} in a new process")
                    found = trial.outcome(kept, file, extension, environment)
                    bad = {name: _named(shell, name, why) for name, why in found.failed.items()}
            held.missing.update(found.missing)
            held.bare.update({name: why for name, why in bad.items() if name in kept.contents})
            failed.update({name: why for name, why in bad.items() if name in left})
            if not bad and not found.missing and not apart:
                break
            # Each alone, until all that do not load are known; then again with what they share.
            apart = bool(found.failed) and not (apart and found.lacking is not None)
            left = [name for name in left if name not in bad]
        # Where CUDA has failed, waiting helps nothing: it goes on with what is left.
        missed = {name: why for name, why in failed.items() if name not in optional}
        for name in [name for name in missed if refused.is_over(shell.user_ns[name])]:
            del missed[name]  # it is of no use any more
        if not force and STATE.dead_context is None:
            _refuse(missed, found.lacking or {}, again)
    except OSError as error:
        raise RestartError(
            f"the variables cannot be written to {tempfile.gettempdir()}: {text.reason(error)}; "
            "TMPDIR names another folder"
        ) from None
    notes = {
        **kept.notes,
        "Changed:": [f"{name} (without {what})" for name, what in (found.lacking or {}).items()],
        "As in a new process:": [f"{name} ({why})" for name, why in held.bare.items()],
    }
    if kept.body > trial.LARGEST:
        size = f"a pickle of {kept.body / 2**20:.0f} MiB"
        notes["Not compared with what they were, which takes long for"] = [size]
    return file, replace(kept, failed=failed, settings=settings.read(shell), notes=notes)


def _refuse(missed: Mapping[str, str], lacking: Mapping[str, str], again: str) -> None:
    """Return if nothing is lost or changed.

    Raises:
        RestartError: something is; what, and what to type.
    """
    found = [f"cannot keep {_reasons(missed)}"] if missed else []
    found += [f"{name} would come back without {what}" for name, what in lacking.items()]
    if found:
        which = noun(len(missed) + len(lacking), "this", "these")
        raise RestartError(f"{'; '.join(found)}. Nothing was lost; {again} loses just {which}")


def _named(shell: Shell, name: str, why: str) -> str:
    what = refused.what(shell.user_ns.get(name))
    return f"{what}: {why}" if what else why


def _reasons(failed: Mapping[str, str]) -> str:
    """Name the variables and why: those with the same reason together, so that all have room."""
    together = dict[str, list[str]]()
    for name, reason in failed.items():
        together.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in together.items())


def _pickled(
    shell: Shell, names: Sequence[str], held: Held, out: IO[bytes], *, apart: bool
) -> tuple[Kept, Pickler, dict[str, str]]:
    """Pickle the variables; also return those that have no pickle, and why."""
    variables, bad = dict[str, Variable](), dict[str, str]()
    graphs = set[int]()
    pickler = Pickler(out, shell, held)
    contents = dict[str, Any]()
    values = {name: shell.user_ns[name] for name in names}
    while values:
        for name, value in values.items():
            whole = value if name in names else Content(value)
            if apart:
                pickler.clear_memo()
            try:
                if pickler.add(whole):
                    graphs.add(id(value))
            except Exception as error:
                if getattr(error, "errno", None) in _FULL:
                    raise
                bad[name] = pickler.blame(error)
                # What it shares with others it cannot pickle again; another looks at the others.
                pickler = Pickler(io.BytesIO(), shell, held)
                continue
            kind = "" if id(value) in pickler.given or whole is not value else type_name(value)
            variables[name] = Variable(kind, out.tell(), len(pickler.buffers))
        contents.update(
            values := {
                name: each for name, each in pickler.contents.items() if name not in contents
            }
        )
    numbers = getattr(shell.compile, "_filename_map", {})
    kept = Kept(
        variables,
        out.tell(),
        [buffer.raw().nbytes for buffer in pickler.buffers],
        [_place(each) for each in pickler.storages],
        pickler.referred,
        [
            name
            for name in names
            if (reference := held.get(shell.user_ns[name])) and str(reference) not in contents
        ],
        [*contents],
        apart,
        {name: linecache.getlines(name) for name in pickler.files if not Path(name).exists()},
        {name: numbers[name] for name in pickler.files if name in numbers},
        Devices(driver.state().uuids or ()),
        {
            # Of a value that has two names only the first is looked through.
            "Without their graph:": [name for name in names if id(shell.user_ns[name]) in graphs],
            "No longer share memory:": _parted({name: shell.user_ns[name] for name in names}),
        },
    )
    return kept, pickler, bad


def _parted(variables: Mapping[str, Any]) -> list[str]:
    """Name arrays with their views, and with tensors on their memory: each gets its own.

    Only variables that are one themselves; tensors alone go on sharing their storage.
    """
    numpy, torch = sys.modules.get("numpy"), torch_cuda.loaded()
    together = dict[int, dict[int, list[str]]]()
    for name, value in variables.items():
        if numpy is not None and is_a(value, numpy.ndarray):
            owner, one = value, id(value)
            while is_a(owner.base, numpy.ndarray):
                owner = owner.base
            address = owner.__array_interface__["data"][0]
        elif torch is not None and is_a(value, torch.Tensor):
            try:
                address = one = storage_address()(value)
            except RuntimeError:  # it has no memory of its own
                continue
        else:
            continue
        together.setdefault(address, {}).setdefault(one, []).append(name)
    groups = [[*each.values()] for each in together.values() if len(each) > 1]
    return [" and ".join(map(_with_others, each)) for each in groups]


def _with_others(names: Sequence[str]) -> str:
    """Return the first name, and in brackets those that go on sharing memory with it."""
    return names[0] if len(names) == 1 else f"{names[0]} ({', '.join(names[1:])})"


def _check_room(kept: Kept, environment: Mapping[str, str]) -> None:
    """Return if the host has the memory for what is on a GPU now and will not be.

    And for what the child makes anew, and the file where that is in memory; arrays and tensors stay
    in the file until they are written to, and are then copied one at a time.

    Raises:
        RestartError: it has less; with both figures.
    """
    hidden = kept.devices.hidden(environment)
    need = sum(size for size, device in kept.storages if device in hidden) + _GROWS * kept.body
    if host_memory.is_memory(tempfile.gettempdir()):
        need += kept.places()[-1][0]
    free = host_memory.available()
    if need > free:
        raise RestartError(
            f"the variables need {need / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are "
            "free: nothing was lost; delete some, or keep others with --keep NAMES"
        )


def _write_data(file: IO[bytes], kept: Kept, pickler: Pickler) -> None:
    """Write the bytes of arrays and tensors.

    Raises:
        OSError: there is no room.
        RestartError: a GPU does not give them.
    """
    places = kept.places()
    size = places[-1][0]
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size - kept.body > free:
        raise OSError(f"they need {size / 2**30:.1f} GiB, and it has {free / 2**30:.1f} GiB")
    file.truncate(max(size, 1))  # an empty file cannot be mapped
    data = chain((buffer.raw() for buffer in pickler.buffers), map(_bytes, pickler.storages))
    try:
        for (place, _), part in zip(places, data, strict=False):
            file.seek(place)
            file.write(part)
    except RuntimeError as error:  # after which the next restart knows that CUDA has failed
        raise RestartError(f"the GPUs' memory cannot be read: {text.reason(error)}") from None
    file.flush()


def _place(memory: Any) -> tuple[int, str]:
    """Return the bytes of a storage, or of an array, and the device."""
    if isinstance(memory, sys.modules["torch"].UntypedStorage if torch_cuda.loaded() else ()):
        return memory.nbytes(), str(memory.device)
    return memory.nbytes, "cpu"


def _bytes(memory: Any) -> memoryview:
    """Return the bytes of a storage, or of an array; those on a GPU are copied."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and is_a(memory, numpy.ndarray):
        if not memory.flags.forc:
            memory = memory.copy(order="C")
        return memoryview(memory.ravel(order="K").view("u1"))
    with plain_functions():
        return memoryview(as_bytes(memory).cpu().numpy())


# --- in the new process ---------------------------------------------------------------------------


def restore(file: IO[bytes], shell: Shell, kept: Kept) -> Kept:
    """Bind the variables in the notebook; return what has come of them."""
    for name, lines in kept.sources.items():  # None: it is never looked for on the disk
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    getattr(shell.compile, "_filename_map", {}).update(kept.cells)
    devices, (buffers, memory) = kept.devices, kept.mapped(file.fileno())

    @functools.cache
    def storage(number: int) -> Any:
        return devices.moved_storage(on_host(memory[number]), kept.storages[number][1])

    loader = Unpickler(
        kept.pickles(file.fileno()),
        buffers,
        memory,
        storage=storage,
        device=devices.moved_device,
        shell=shell,
        copies=True,
    )
    done, on_gpu, failed, why = list[str](), list[str](), dict(kept.failed), ""
    for name in kept.variables:
        arrived = devices.arrived
        try:
            value = None if why else loader.load()
        except Exception as error:  # though the trial has loaded it
            failed[name], why = text.named(error), f"it was to be loaded after {name}"
            continue
        if why:
            failed[name] = why
        elif name not in kept.contents:
            shell.user_ns[name] = value
            done.append(name)
            if devices.arrived > arrived:
                on_gpu.append(name)
    # torch would check them when it next loads anything, and until then keep them.
    getattr(sys.modules.get("torch._utils"), "_sparse_tensors_to_validate", []).clear()
    shell.user_ns["__builtins__"] = builtins  # cloudpickle puts the dictionary there
    # At last: what is imported may draw random numbers.
    unset = settings.restore(kept.settings, devices.now)
    return replace(kept, done=done, failed=failed, unset=unset, on_gpu=on_gpu)
