"""Keep variables across a restart: one pickle of all of them, so that what they share stays shared.

The bytes of large arrays and of tensors are not in the pickle but in a file, each storage once.
"""

from __future__ import annotations

import builtins
import functools
import io
import linecache
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from gpumagic.cuda import driver, failure, torch_cuda
from gpumagic.cuda.storages import as_bytes, plain_functions
from gpumagic.errors import RestartError
from gpumagic.restart import settings, trial
from gpumagic.restart.devices import Devices
from gpumagic.restart.handover import Kept, Variable
from gpumagic.restart.pickler import Pickler, Unpickler, use_namespace
from gpumagic.system import text
from gpumagic.system.introspection import is_imported

# --- in the old process ---------------------------------------------------------------------------


def write(
    shell: Any,
    names: Iterable[str],
    extension: str,
    environment: Mapping[str, str],
    *,
    optional: Container[str] = (),
    force: bool = False,
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
            bad = bad or _lost_with_context(pickler)
            bad = bad or _write_data(file, kept, pickler)
            tried = not bad
            if tried and left:
                say(f"trying to load {text.plural(len(left), 'variable')} in a new process")
            bad = bad or trial.failures(kept, file, extension, environment)
            failed.update(bad)
            # Where CUDA has failed, waiting helps nothing: it goes on with what is left.
            missed = [name for name in failed if name not in optional]
            if tried and missed and not force and failure.dead_context() is None:
                file.close()
                raise RestartError(
                    f"cannot keep {_reasons({name: failed[name] for name in missed})}. "
                    "Keep others, or add --force to lose these"
                )
            if not bad:
                break
            left = [name for name in left if name not in bad]
    except OSError as error:
        raise RestartError(
            f"the variables cannot be written to {tempfile.gettempdir()}: {text.reason(error)}; "
            "TMPDIR names another folder"
        ) from None
    if not left:
        return file, replace(kept, failed=failed)
    kept = replace(kept, failed=failed, random=_random_states(), settings=settings.read())
    return file, replace(kept, other_settings=settings.others(shell))


def _reasons(failed: Mapping[str, str]) -> str:
    """Name the variables and why: those with the same reason together, so that all have room."""
    together = dict[str, list[str]]()
    for name, reason in failed.items():
        together.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in together.items())


def _pickled(shell: Any, names: Sequence[str]) -> tuple[Kept, Pickler, dict[str, str]]:
    """Pickle the variables; also return those that have no pickle, and why."""
    variables, bad = dict[str, Variable](), dict[str, str]()
    out = io.BytesIO()
    pickler = Pickler(out, shell)
    for name in names:
        value = shell.user_ns[name]
        try:
            pickler.add(name, value)
        except Exception as error:
            bad[name] = text.reason(error)
            # What it shares with others it cannot pickle again; the next one looks at the others.
            pickler = Pickler(io.BytesIO(), shell)
            continue
        kind = "" if pickler.is_given(value) else trial.type_name(value)
        variables[name] = Variable(kind, out.tell(), len(pickler.buffers))
    numbers = getattr(shell.compile, "_filename_map", {})
    kept = Kept(
        variables,
        out.getvalue(),
        [buffer.raw().nbytes for buffer in pickler.buffers],
        [(each.nbytes(), str(each.device)) for each in pickler.storages],
        {name: linecache.getlines(name) for name in pickler.files if not Path(name).exists()},
        {name: numbers[name] for name in pickler.files if name in numbers},
        driver.state().uuids or (),
        without_graph=pickler.without_graph(shell.user_ns),
    )
    return kept, pickler, bad


def _lost_with_context(pickler: Pickler) -> dict[str, str]:
    """Return the variables whose GPU memory cannot be read any more, as far as these are known."""
    if failure.check_context() is None:
        return {}
    lost: dict[str, str] = {}
    for number, storage in enumerate(pickler.storages):
        if storage.device.type == "cuda":
            lost.update(dict.fromkeys(pickler.users[number], LOST_WITH_CONTEXT))
    return lost


LOST_WITH_CONTEXT = "on the GPU, which cannot be read any more"


def _write_data(file: IO[bytes], kept: Kept, pickler: Pickler) -> dict[str, str]:
    """Write the bytes of arrays and tensors; or return the variables that a GPU does not give."""
    places = kept.places()
    size = places[-1][0]
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise OSError(f"they need {size / 2**30:.1f} GiB, and it has {free / 2**30:.1f} GiB")
    for buffer, (place, _) in zip(pickler.buffers, places, strict=False):
        file.seek(place)
        file.write(buffer.raw())
    for number, storage in enumerate(pickler.storages):
        file.seek(places[len(pickler.buffers) + number][0])
        try:
            file.write(_bytes(storage))
        except RuntimeError as error:
            return dict.fromkeys(pickler.users[number], text.reason(error))
    file.truncate(size)
    file.flush()
    return {}


def _bytes(storage: Any) -> memoryview:
    """Return the bytes of a storage; those on a GPU are copied."""
    with plain_functions():
        return memoryview(as_bytes(storage).cpu().numpy())


# --- in the new process ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored:
    """What has come back."""

    names: Sequence[str]
    #: Modules, and classes and functions of theirs, which have the state of a new process.
    imported: Sequence[str]
    #: Why others have not.
    failed: Mapping[str, str]
    devices: Devices
    #: The GPUs of the old process whose random state is lost.
    random_lost: Sequence[str]
    #: Those that have come back without their autograd graph.
    without_graph: Sequence[str]
    #: Settings that were not those of a new process, and are now.
    reset: Sequence[str]


def restore(file: IO[bytes], shell: Any, kept: Kept) -> Restored:
    """Bind the variables in the notebook."""
    use_namespace(shell.user_ns)
    for name, lines in kept.sources.items():  # None: it is never looked for on the disk
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    getattr(shell.compile, "_filename_map", {}).update(kept.cells)
    devices, places = Devices(kept.uuids), kept.places()

    @functools.cache
    def storage(number: int) -> Any:
        torch: Any = torch_cuda.require()
        size, device = kept.storages[number]
        made = torch.UntypedStorage(size)
        _fill(file, places[len(kept.buffers) + number][0], _bytes(made))
        return devices.moved_storage(made, device)

    buffers = []
    for place, size in places[: len(kept.buffers)]:
        buffers.append(memoryview(bytearray(size)))
        _fill(file, place, buffers[-1])
    loader = Unpickler(io.BytesIO(kept.body), buffers, storage, devices.moved_device, shell)
    done, failed = list[str](), dict(kept.failed)
    for name in kept.variables:
        try:
            shell.user_ns[name] = loader.load()
            done.append(name)
        except Exception as error:  # the others may refer to it; the trial has loaded them all
            failed.update(dict.fromkeys([*kept.variables][len(done) :], text.named(error)))
            break
    shell.user_ns["__builtins__"] = builtins  # cloudpickle puts the dictionary there
    reset = [*kept.other_settings, *settings.restore(kept.settings, devices.now)]
    # At last: what is imported may draw random numbers.
    random_lost = _restore_random(kept.random, devices.now) if kept.random else []
    graphless = [name for name in kept.without_graph if name in done]
    imported = [name for name in done if is_imported(shell.user_ns[name])]
    names = [name for name in done if name not in imported]
    return Restored(names, imported, failed, devices, random_lost, graphless, reset)


def _fill(file: IO[bytes], place: int, memory: memoryview) -> None:
    file.seek(place)
    if file.readinto(memory) != len(memory):  # type: ignore[attr-defined]
        raise EOFError("the file of the kept variables is too short")


# --- the random generators of Python, NumPy and torch --------------------------------------------


def _random_states() -> dict[str, Any]:
    """Return the states, as plain data and NumPy arrays; of GPUs only where they are in use.

    They are in host memory, also those of GPUs: a CUDA context that has failed has them still.
    """
    found: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), torch_cuda.loaded()
    if numpy is not None:
        found["numpy"] = numpy.random.get_state()
    if torch is not None:
        found["torch"] = torch.get_rng_state().numpy()
        found["seed"] = torch.initial_seed()
        if torch_cuda.initialized():
            found["cuda"] = [*map(_state, torch.cuda.default_generators)]
    return found


def _state(generator: Any) -> Any:
    try:
        return generator.get_state().numpy()
    except RuntimeError:  # CUDA has failed
        return None


def _restore_random(found: Mapping[str, Any], now: Callable[[str], str]) -> list[str]:
    """Restore the states; return the GPUs whose state is lost, as ``cuda:0`` of the old process.

    ``now`` returns where a device of the old process is in this one.
    """
    random.setstate(found["python"])
    if "numpy" in found:
        import numpy

        numpy.random.set_state(found["numpy"])
    if "torch" not in found:
        return []
    torch: Any = torch_cuda.require()
    torch.set_rng_state(torch.from_numpy(found["torch"]))
    if "cuda" not in found:  # `torch.manual_seed` seeds them when they are used
        torch.cuda.manual_seed_all(found["seed"])
    lost, none = [], now("cuda") == "cpu"  # without GPUs their states are missed by nobody
    for number, state in enumerate(found.get("cuda", ())):
        place = now(f"cuda:{number}")
        if not none and (state is None or place == "cpu"):
            lost.append(f"cuda:{number}")
        elif not none:
            torch.cuda.set_rng_state(torch.from_numpy(state), place)
    return lost
