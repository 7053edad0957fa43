"""Keep variables across a restart: one pickle of all of them, so that what they share stays shared.

The bytes of large arrays and of tensors are not in the pickle but behind it, each storage once.
"""

from __future__ import annotations

import builtins
import errno
import linecache
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from gpumagic.cuda import driver
from gpumagic.cuda.this_process import STATE
from gpumagic.errors import RestartError
from gpumagic.restart.variables import data_file, settings
from gpumagic.restart.variables.devices import Devices
from gpumagic.restart.variables.kinds import refused
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.module_objects import Content, ModuleObjects, type_name
from gpumagic.restart.variables.pickler import Leaf, Pickler
from gpumagic.restart.variables.trial import Leaves, Outcome, Trial
from gpumagic.restart.variables.unpickler import Unpickler
from gpumagic.system import host_memory, text
from gpumagic.system.introspection import is_imported
from gpumagic.system.shell import Shell
from gpumagic.wording import noun, plural, with_reasons

#: So many looks at which variables have no pickle: a function of one, a function of that, …
_LOOKS = 4
#: A folder without room.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: So many texts, numbers and truth values are compared, in seconds.
_MOST_LEAVES = 1_000_000
#: The bytes that objects take for one of their pickle.
_GROWS = 4

# --- in the old process ---------------------------------------------------------------------------


def write(
    shell: Shell,
    names: Mapping[str, bool],
    extension: str,
    environment: Mapping[str, str],
    *,
    force: bool = False,
    again: str = "… --force",
    say: Callable[[str], None] = print,
) -> tuple[IO[bytes], Manifest]:
    """Write variables to a nameless file; `Manifest.failed` has those that cannot be kept.

    ``names`` has the variables, and whether they must be kept. A child process with the new
    environment has loaded all that is kept, and ``extension``.

    Raises:
        RestartError: some that must be kept cannot be, and neither ``force`` is given nor has CUDA
            failed; the file cannot be written, or Python does not start in that environment.
    """
    try:
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(prefix="gpumagic-"))
            with Trial.begun(file, extension, environment, shell) as tried:
                manifest, lacking = _write(shell, [*names], environment, file, tried, say)
            missed = {name: why for name, why in manifest.failed.items() if names[name]}
            for name in [name for name in missed if refused.is_over(shell.user_ns[name])]:
                del missed[name]  # it is of no use any more
            # Where CUDA has failed, waiting helps nothing: it goes on with what is left.
            if not force and STATE.dead_context is None:
                _refuse(missed, lacking, again)
            stack.pop_all()
    except OSError as error:
        raise RestartError(
            f"the variables cannot be written to {tempfile.gettempdir()}: {text.reason(error)}; "
            "TMPDIR names another folder"
        ) from None
    return file, replace(manifest, settings=settings.read(shell))


def _write(
    shell: Shell,
    left: list[str],
    environment: Mapping[str, str],
    file: IO[bytes],
    tried: Trial,
    say: Callable[[str], None],
) -> tuple[Manifest, Mapping[str, str]]:
    """Write variables, without those that have no pickle or do not load, until all load.

    Also return what some lack when they have come back.
    """
    failed, module_objects, looks = dict[str, str](), ModuleObjects(shell.user_ns), 0
    while True:
        manifest, pickler, bad, leaves = _pickled(shell, left, module_objects, file)
        absent = {id(shell.user_ns[name]) for name in bad if name in left}
        if absent and absent != module_objects.absent and looks < _LOOKS:
            module_objects.absent, looks = absent, looks + 1  # functions do without these
            continue
        found = Outcome(failed=bad)
        if not bad:
            _check_room(manifest, environment)
            data_file.write(file, pickler.memory, manifest.parts)
            if left:
                if mine := sum(not is_imported(shell.user_ns[name]) for name in left):
                    say(f"trying to load {plural(mine, 'variable')} in a new process")
                found = tried.outcome(manifest, leaves, shell.user_ns)
        module_objects.missing.update(found.missing)
        module_objects.bare.update(
            {n: why for n, why in found.failed.items() if n in manifest.contents}
        )
        failed.update({n: why for n, why in found.failed.items() if n in left})
        left = [name for name in left if name not in found.failed]
        if not found.failed and not found.missing:
            break
    changed = [f"{name} (without {what})" for name, what in found.lacking.items()]
    ended = {"Not compared with what they were, which ends the process:": found.uncompared}
    notes = {**manifest.notes, **ended, "Changed:": changed}
    manifest = replace(manifest, failed=failed, notes=notes)
    return manifest, found.lacking


def _refuse(missed: Mapping[str, str], lacking: Mapping[str, str], again: str) -> None:
    """Return if nothing is lost or changed.

    Raises:
        RestartError: something is; what, and what to type.
    """
    reasons = with_reasons(missed)
    found = [f"cannot keep {'; '.join(reasons)}"] if missed else []
    found += [f"{name} would come back without {what}" for name, what in lacking.items()]
    if found:
        which = noun(len(missed) + len(lacking), "this", "these")
        raise RestartError(f"{'; '.join(found)}. Nothing was lost; {again} loses just {which}")


def _pickled(
    shell: Shell, names: Sequence[str], module_objects: ModuleObjects, out: IO[bytes]
) -> tuple[Manifest, Pickler, dict[str, str], Leaves]:
    """Pickle the variables; also return what has, why some have no pickle, and what to compare."""
    kinds, bad, graphs = dict[str, str](), dict[str, str](), set[int]()
    leaves, uncompared, room = dict[str, set[Leaf]](), list[str](), _MOST_LEAVES
    out.seek(0)
    pickler, contents = Pickler(out, shell, module_objects), dict[str, Any]()
    values = {name: shell.user_ns[name] for name in names}
    while values:
        for name, value in values.items():
            whole = Content(value) if name in contents else value
            found = set[Leaf]()
            pickler.note = partial(_add, found, room)
            try:
                if pickler.add(whole):
                    graphs.add(id(value))
            except Exception as error:
                if getattr(error, "errno", None) in _FULL:
                    raise
                bad[name] = pickler.blame(error)
                # What it shares with others it cannot pickle again; another looks at the others.
                pickler = Pickler(out, shell, module_objects)
                continue
            kinds[name] = (
                "" if pickler.is_of_process(value) or name in contents else type_name(value)
            )
            if len(found) >= room:
                uncompared.append(name)
            elif name not in contents:
                leaves[name], room = found, room - len(found)
        values = {n: each for n, each in pickler.contents.items() if n not in contents}
        contents.update(values)
    numbers, cells = getattr(shell.compile, "_filename_map", {}), pickler.cells
    # Of a value that has two names only the first is looked through.
    without = [name for name in names if id(shell.user_ns[name]) in graphs]
    manifest = Manifest(
        kinds=kinds,
        body=out.tell(),
        parts=data_file.layout(pickler.memory, out.tell()),
        referred=pickler.referred,
        anew=[name for name in names if module_objects.is_anew(shell.user_ns[name], contents)],
        contents=[*contents],
        sources={name: linecache.getlines(name) for name in cells if not Path(name).exists()},
        cells={name: numbers[name] for name in cells if name in numbers},
        devices=Devices(driver.state().uuids or ()),
        notes={
            "Without their graph:": without,
            "Not compared with what they were, which takes long:": uncompared,
            "As in a new process:": [
                f"{name} ({why})" for name, why in module_objects.bare.items()
            ],
        },
    )
    return manifest, pickler, bad, leaves


def _add(leaves: set[Leaf], most: int, leaf: Leaf) -> None:
    if len(leaves) < most:
        leaves.add(leaf)


def _check_room(manifest: Manifest, environment: Mapping[str, str]) -> None:
    """Return if the host has the memory for what is on a GPU now and will not be.

    And for what the child makes anew, and the file where that is in memory; arrays and tensors stay
    in the file until they are written to, and are then copied one at a time.

    Raises:
        RestartError: it has less; with both figures.
    """
    hidden, need = manifest.devices.hidden(environment), _GROWS * manifest.body
    need += sum(part.size for part in manifest.parts if part.device in hidden)
    if host_memory.is_memory(tempfile.gettempdir()):
        need += manifest.body + sum(part.size for part in manifest.parts)
    free = host_memory.available()
    if need > free:
        raise RestartError(
            f"the variables need {need / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are "
            "free: nothing was lost; delete some, or keep others with --keep NAMES"
        )


# --- in the new process ---------------------------------------------------------------------------


def restore(file: IO[bytes], shell: Shell, manifest: Manifest) -> Manifest:
    """Bind the variables in the notebook; return what has come of them."""
    for name, lines in manifest.sources.items():  # None: it is never looked for on the disk
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    getattr(shell.compile, "_filename_map", {}).update(manifest.cells)
    devices, loader = manifest.devices, Unpickler(manifest, file.fileno(), shell, is_trial=False)
    done, on_gpu, failed, why = list[str](), list[str](), dict(manifest.failed), ""
    for name in manifest.kinds:
        arrived = devices.arrived
        try:
            if not why:
                loader.bind(name)
        except Exception as error:  # though the trial has loaded it
            failed[name], why = text.named(error), f"it was to be loaded after {name}"
        if why:
            failed.setdefault(name, why)
        elif name not in manifest.contents:
            done.append(name)
            if devices.arrived > arrived:
                on_gpu.append(name)
    # torch would check them when it next loads anything, and until then keep them.
    getattr(sys.modules.get("torch._utils"), "_sparse_tensors_to_validate", []).clear()
    shell.user_ns["__builtins__"] = builtins  # cloudpickle puts the dictionary there
    # At last: what is imported may draw random numbers.
    notes = {**manifest.notes, **settings.restore(shell, manifest.settings, devices.now)}
    return replace(manifest, done=done, failed=failed, notes=notes, on_gpu=on_gpu)
