"""Keep variables across a restart: one pickle of all of them, so that what they share stays shared.

The bytes of large arrays and of tensors are not in the pickle but in a file, each storage once.
"""

from __future__ import annotations

import builtins
import functools
import io
import linecache
import pickle
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpumagic.cuda import driver, failure, torch_cuda
from gpumagic.cuda.storages import as_bytes, plain_functions, storage_address
from gpumagic.errors import RestartError
from gpumagic.restart import settings, trial
from gpumagic.restart.devices import Devices
from gpumagic.restart.handover import Kept, Variable
from gpumagic.restart.pickler import Pickler, Unpickler, on_host
from gpumagic.system import text
from gpumagic.system.introspection import is_a, is_imported
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from torch import UntypedStorage

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
    left, failed = list(names), dict[str, str]()
    try:
        file = tempfile.TemporaryFile(prefix="gpumagic-")  # noqa: SIM115 - the next process's
        while True:
            kept, pickler, bad = _pickled(shell, left)
            all_known = not bad
            if not bad:
                _write_data(file, kept, pickler)
                if left:
                    say(f"trying to load {text.plural(len(left), 'variable')} in a new process")
                    bad, all_known = trial.failures(kept, file, extension, environment)
            failed.update(bad)
            # Where CUDA has failed, waiting helps nothing: it goes on with what is left.
            missed = [name for name in failed if name not in optional]
            if all_known and missed and not force and failure.dead_context() is None:
                file.close()
                which = text.noun(len(missed), "this", "these")
                raise RestartError(
                    f"cannot keep {_reasons({name: failed[name] for name in missed})}. "
                    f"Nothing was lost; {again} loses just {which}"
                )
            if not bad:
                break
            left = [name for name in left if name not in bad]
    except OSError as error:
        raise RestartError(
            f"the variables cannot be written to {tempfile.gettempdir()}: {text.reason(error)}; "
            "TMPDIR names another folder"
        ) from None
    carried = settings.read(shell) if left else {}
    return file, replace(kept, failed=failed, settings=carried)


def _reasons(failed: Mapping[str, str]) -> str:
    """Name the variables and why: those with the same reason together, so that all have room."""
    together = dict[str, list[str]]()
    for name, reason in failed.items():
        together.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in together.items())


def _pickled(shell: Shell, names: Sequence[str]) -> tuple[Kept, Pickler, dict[str, str]]:
    """Pickle the variables; also return those that have no pickle, and why."""
    variables, bad = dict[str, Variable](), dict[str, str]()
    graphs, out = set[int](), io.BytesIO()
    pickler = Pickler(out, shell)
    for name in names:
        value = shell.user_ns[name]
        try:
            if pickler.add(value):
                graphs.add(id(value))
        except Exception as error:
            bad[name] = text.reason(error)
            # What it shares with others it cannot pickle again; the next one looks at the others.
            pickler = Pickler(io.BytesIO(), shell)
            continue
        kind = "" if id(value) in pickler.given else trial.type_name(value)
        variables[name] = Variable(kind, out.tell(), len(pickler.buffers))
    numbers = getattr(shell.compile, "_filename_map", {})
    kept = Kept(
        variables,
        out.getvalue(),
        [buffer.raw().nbytes for buffer in pickler.buffers],
        {key: (each.nbytes(), str(each.device)) for key, each in pickler.storages.items()},
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


def _write_data(file: IO[bytes], kept: Kept, pickler: Pickler) -> None:
    """Write the bytes of arrays and tensors.

    Raises:
        OSError: there is no room.
        RestartError: a GPU does not give them.
    """
    places = kept.places()
    size = places[-1][0]
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise OSError(f"they need {size / 2**30:.1f} GiB, and it has {free / 2**30:.1f} GiB")
    file.truncate(max(size, 1))  # an empty file cannot be mapped
    data = chain(
        (buffer.raw() for buffer in pickler.buffers), map(_bytes, pickler.storages.values())
    )
    try:
        for (place, _), part in zip(places, data, strict=False):
            file.seek(place)
            file.write(part)
    except RuntimeError as error:  # after which the next restart knows that CUDA has failed
        raise RestartError(f"the GPUs' memory cannot be read: {text.reason(error)}") from None
    file.flush()


def _bytes(storage: UntypedStorage) -> memoryview:
    """Return the bytes of a storage; those on a GPU are copied."""
    with plain_functions():
        return memoryview(as_bytes(storage).cpu().numpy())


# --- in the new process ---------------------------------------------------------------------------


def restore(file: IO[bytes], shell: Shell, kept: Kept) -> Kept:
    """Bind the variables in the notebook; return what has come of them."""
    for name, lines in kept.sources.items():  # None: it is never looked for on the disk
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    getattr(shell.compile, "_filename_map", {}).update(kept.cells)
    devices, (arrays, storages) = kept.devices, kept.mapped(file.fileno())

    @functools.cache
    def storage(number: int) -> Any:
        return devices.moved_storage(on_host(storages[number]), kept.storages[number][1])

    copies = [memoryview(bytearray(array)) for array in arrays]
    make = functools.partial(Unpickler, storage=storage, device=devices.moved_device, shell=shell)
    loader, begin, absent = make(io.BytesIO(kept.body), copies), 0, set[int]()
    done, on_gpu, failed = list[str](), list[str](), dict(kept.failed)
    for name, variable in kept.variables.items():
        try:
            if absent and absent & trial.taken(kept.body[begin : variable.end]):
                raise pickle.UnpicklingError("it shares a part with one that did not load again")
            arrived = devices.arrived
            shell.user_ns[name] = loader.load()
            done.append(name)
            if devices.arrived > arrived:
                on_gpu.append(name)
        except Exception as error:  # though the trial has loaded it: those behind it are loaded
            failed[name] = text.named(error)
            first = trial.memoized(kept.body, begin)
            body, shared = trial.behind(variable, kept.body, loader.memo.copy())
            absent.update(n for n in range(first, len(shared)) if not _whole(shared[n]))
            loader = make(io.BytesIO(body), [*shared, *copies[variable.buffers :]])
            loader.load()
        begin = variable.end
    # torch would check them when it next loads anything, and until then keep them.
    getattr(sys.modules.get("torch._utils"), "_sparse_tensors_to_validate", []).clear()
    shell.user_ns["__builtins__"] = builtins  # cloudpickle puts the dictionary there
    imported = [name for name in done if is_imported(shell.user_ns[name])]
    notes = {
        "Kept:": [name for name in done if name not in imported],
        "Imported anew:": imported,
        **kept.notes,
        # At last: what is imported may draw random numbers.
        **settings.restore(kept.settings, devices.now),
    }
    return replace(kept, notes=notes, failed=failed, on_gpu=on_gpu)


def _whole(part: Any) -> bool:
    """Return whether a part of a variable that did not load has all that belongs to it."""
    if type(part) in (type, types.FunctionType, types.BuiltinFunctionType):
        return bool(part.__module__ != "__main__")
    dtype = getattr(sys.modules.get("numpy"), "dtype", ())
    return type(part) is str or isinstance(part, dtype)
