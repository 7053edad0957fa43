"""In the old process: write the variables to a file, tried and compared, or refuse the restart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import IO

from gpumagic.cuda.this_process import STATE
from gpumagic.errors import RestartError
from gpumagic.restart.variables import settings
from gpumagic.restart.variables.kinds import refused
from gpumagic.restart.variables.manifest import Manifest
from gpumagic.restart.variables.module_objects import ModuleObjects
from gpumagic.restart.variables.pickle_file import Pickles
from gpumagic.restart.variables.trial.parent import Outcome, Trial
from gpumagic.system import host_memory, text
from gpumagic.system.introspection import is_imported
from gpumagic.system.shell import Shell
from gpumagic.wording import noun, plural, with_reasons

#: The bytes that objects take for one of their pickle.
_GROWS = 4


def write(
    shell: Shell,
    names: Mapping[str, bool],
    extension: str,
    environment: Mapping[str, str],
    *,
    force: bool = False,
    say: Callable[[str], None] = print,
) -> tuple[IO[bytes], Manifest]:
    """Write variables to a nameless file; `Manifest.failed` has those that cannot be kept.

    ``names`` has the variables, and whether they must be kept. A child process with the new
    environment has loaded all that is kept, and ``extension``.

    Raises:
        RestartError: some that must be kept cannot be, and neither ``force`` is given nor has CUDA
            failed; the file cannot be written, or Python does not start in that environment.
    """
    with ExitStack() as stack:
        with _writing():
            file = stack.enter_context(tempfile.TemporaryFile(prefix="gpumagic-"))
        with Trial.begun(file, extension, environment, shell) as trial, _writing():
            manifest, lacking = _write(shell, names, environment, file, trial, say)
        # Where CUDA has failed, waiting helps nothing: it goes on with what is left.
        if not force and STATE.dead_context is None:
            needed = (name for name in manifest.failed if names[name])
            lost = [name for name in needed if not refused.is_over(shell.user_ns[name])]
            _refuse({name: manifest.failed[name] for name in lost}, lacking, shell)
        stack.pop_all()
    return file, replace(manifest, settings=settings.read(shell))


@contextmanager
def _writing() -> Iterator[None]:
    """Say where the variables are written, if that fails."""
    try:
        yield
    except OSError as error:
        raise RestartError(
            f"the variables cannot be written to {tempfile.gettempdir()}: {text.reason(error)}; "
            "TMPDIR names another folder"
        ) from None


def _write(
    shell: Shell,
    names: Collection[str],
    environment: Mapping[str, str],
    file: IO[bytes],
    trial: Trial,
    say: Callable[[str], None],
) -> tuple[Manifest, Mapping[str, str]]:
    """Write variables; those that have no pickle or do not load are left out, until all load.

    Also return what some lack when they have come back.
    """
    failed, absent = dict[str, str](), set[tuple[str, int]]()
    module_objects = ModuleObjects(shell.user_ns)
    while True:
        left = [name for name in names if name not in failed]
        pickles = Pickles(file, shell, left, module_objects, absent)
        if pickles.failed:
            suspects = [name for name in left if name in pickles.failed]
            new = {(name, id(shell.user_ns[name])) for name in suspects} - absent
            absent |= new
            if new:  # functions may have a pickle without those among them that have none
                again = Pickles(file, shell, suspects, module_objects, absent)
            outcome = Outcome(failed=(again if new else pickles).failed)
        else:
            manifest = pickles.manifest()
            _check_room(manifest, environment)
            pickles.write_data(manifest)
            if mine := sum(not is_imported(shell.user_ns[name]) for name in left):
                say(f"trying to load {plural(mine, 'variable')} in a new process")
            outcome = trial.outcome(manifest, pickles.leaves, shell.user_ns) if left else Outcome()
        for name, why in outcome.failed.items():
            (failed if name in left else module_objects.without_content)[name] = why
        module_objects.missing.update(outcome.missing)
        if not pickles.failed and not outcome.failed and not outcome.missing:
            break
    notes = {
        **manifest.notes,
        "As in a new process:": _with(module_objects.without_content, ""),
        "Not compared with what they were:": pickles.uncompared,
        "Changed:": _with(outcome.lacking, "without "),
    }
    return replace(manifest, failed=failed, notes=notes), outcome.lacking


def _with(reasons: Mapping[str, str], before: str) -> list[str]:
    return [f"{name} ({before}{why})" for name, why in reasons.items()]


def _refuse(lost: Mapping[str, str], lacking: Mapping[str, str], shell: Shell) -> None:
    """Return if nothing is lost or changed; the two say why, and what is missing.

    Raises:
        RestartError: something is; what, and what to type.
    """
    found = [f"cannot keep {'; '.join(with_reasons(lost))}"] if lost else []
    for name, what in lacking.items():
        words = refused.type_in_words(shell.user_ns[name])
        found.append(f"{name}{f' ({words})' * bool(words)} would come back without {what}")
    if found:
        which = noun(len(lost) + len(lacking), "this", "these")
        refusal = "; ".join(found)
        raise RestartError(f"{refusal}. Nothing was lost; add --force to lose just {which}")


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
