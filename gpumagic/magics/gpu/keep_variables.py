"""``%gpu SPEC --restart --keep``: write variables before a restart, restore them after it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import IO, Any

from gpumagic.cuda import driver, failure, torch_cuda
from gpumagic.cuda.storages import plain_functions
from gpumagic.errors import RestartError
from gpumagic.magics.gpu import session
from gpumagic.magics.output import LiveDisplay
from gpumagic.memory.parking import PARKING
from gpumagic.render.units import bytes_
from gpumagic.restart import shutdown, state_file, variables
from gpumagic.restart.resuming import Resumed
from gpumagic.restart.variables import shared_memory
from gpumagic.system import text

#: Seconds after which progress is shown.
PROGRESS_AFTER = 2.0
#: Names that the new process has anyway, with the same content.
_CARRIED = ("In", "_ih", "_dh")
_OUTPUTS = ("Out", "_oh")
_LATEST = ("_", "__", "___")


def write(
    shell: Any,
    options: argparse.Namespace,
    payload: dict[str, Any],
    environment: Mapping[str, str],
) -> list[IO[bytes]]:
    """Write the variables that are to be kept; ``payload`` gets what the new process reports.

    Raises:
        RestartError: some cannot be kept, and ``--force`` was not given.
        DeviceError: what is parked must come back for it, and there is not enough memory.
    """
    began = time.monotonic()
    present = shutdown.variables(shell)
    names = _names(shell, options.keep, present)
    sources = shell.history_manager.input_hist_parsed
    with _Progress(shell, quiet=payload["quiet"]) as shown:

        def plan() -> variables.Plan:
            return variables.plan(
                shell.user_ns,
                names,
                present,
                sources=sources,
                existing=_existing(shell).keys(),
                progress=shown.pickled,
            )

        try:
            chosen = plan()
            if any(map(_ends_context, chosen.failures.values())):
                chosen = plan()
            files = _files(chosen, options, environment, shown)
        except RuntimeError as error:  # work that was still under way has failed
            if not _ends_context(str(error)):
                raise
            chosen = plan()
            files = _files(chosen, options, environment, shown)
    payload["not_kept"] = chosen.failures
    payload["dead"] = failure.dead_context() is not None
    payload["lost_with_context"] = chosen.lost_with_context
    payload["omitted"] = {name: sorted(what) for name, what in chosen.omitted.items()}
    payload["devices"] = chosen.devices
    payload["cells"] = {
        file: number
        for file, number in getattr(shell.compile, "_filename_map", {}).items()
        if file in chosen.files
    }
    payload["uuids"] = driver.state().uuids or ()
    with plain_functions():
        devices = {tensor.device for tensor in chosen.tables.tensors}
    payload["tensors_on"] = sorted(d.index for d in devices if d.type == "cuda")
    payload["session"] = session.capture(shell)
    payload["keeping"] = time.monotonic() - began
    return files


def _ends_context(error: str) -> bool:
    """Return whether an error shows that the context is dead, which was not known before."""
    known = failure.dead_context() is not None
    return not known and failure.is_cuda_error(error) and bool(failure.check_context())


def _files(
    chosen: variables.Plan,
    options: argparse.Namespace,
    environment: Mapping[str, str],
    shown: _Progress,
) -> list[IO[bytes]]:
    """Write the files of a plan; drop from it what a fresh process cannot load, with ``--force``.

    Raises:
        RestartError: some cannot be kept, and ``--force`` was not given.
    """
    _refuse(chosen.failures, options)
    if PARKING.active and not all(map(_can_be_written, chosen.tables.tensors)):
        PARKING.bring_back()
    while True:
        files, failures = _written(chosen, environment, shown)
        if not failures:
            return files
        reason = failures.pop("", None)
        if reason is not None and not options.force:
            variables.close(files)
            raise RestartError(f"{reason}; add --force to restart without having tried")
        for name, why in failures.items():
            chosen.drop(name, why)
        if not failures:
            return files
        variables.close(files)
        _refuse(failures, options)


def _can_be_written(tensor: Any) -> bool:
    """Return whether a tensor can be written while it is parked: it has a storage of its own."""
    with plain_functions():
        return tensor.device.type != "cuda" or shared_memory.has_storage(tensor)


def _names(shell: Any, words: Sequence[str], present: Mapping[str, Any]) -> list[str]:
    names = [name for word in words for name in word.split(",") if name]
    if "all" in names and "all" not in shell.user_ns:
        names = [*present, *(name for name in names if name != "all")]
    if any(name.startswith("#") for name in names):
        raise RestartError("a comment does not belong on a magic's line: put it on the line above")
    unknown = [name for name in names if name not in shell.user_ns]
    if unknown:
        raise RestartError(f"there is no variable {' or '.join(unknown)} to keep")
    return [name for name in names if name not in _CARRIED]


def _existing(shell: Any) -> dict[int, Any]:
    """Return objects that the new process has anyway, by identity, in a fixed order."""
    kernel = getattr(shell, "kernel", None)
    return {id(each): each for each in (shell, kernel) if each is not None}


def _refuse(failures: Mapping[str, str], options: argparse.Namespace) -> None:
    if failures and not options.force:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in failures.items())
        raise RestartError(f"cannot keep {reasons}. Keep others, or add --force to lose these")


def _written(
    chosen: variables.Plan, environment: Mapping[str, str], shown: _Progress
) -> tuple[list[IO[bytes]], dict[str, str]]:
    """Write the files; return them, and what a fresh process could not load of them."""
    trials: list[variables.Trial] = []

    def begin(file: IO[bytes]) -> None:
        if not {*chosen.names, *chosen.needed} <= chosen.trusted:
            trials.append(variables.Trial(file, environment))

    try:
        content = PARKING.content if PARKING.active else None
        files = variables.write(chosen, state_file.create, shown.written, begin, content)
        failures: dict[str, str] = {}
        try:
            for trial in trials:
                failures.update(trial.failures(shown.trying))
        except BaseException:
            variables.close(files)
            raise
        return files, failures
    finally:
        for trial in trials:
            trial.close()


class _Progress(LiveDisplay):
    """A line of progress, shown once the work takes a while."""

    def __init__(self, shell: Any, *, quiet: bool) -> None:
        super().__init__(shell, quiet=quiet)
        self._shown_at, self._last = time.monotonic() + PROGRESS_AFTER - _INTERVAL, ""

    def _show(self, text: str) -> None:
        if text != self._last and time.monotonic() - self._shown_at >= _INTERVAL:
            self._shown_at, self._last = time.monotonic(), text
            self.text(text)

    def pickled(self, size: int) -> None:
        """Show the length of the pickle so far."""
        self._show(f"keeping variables: looked through {bytes_(size)}")

    def written(self, size: int, expected: int) -> None:
        """Show the size of the file so far."""
        self._show(f"keeping variables: {bytes_(size)} of {bytes_(expected)}")

    def trying(self) -> None:
        """Show that a child process loads the variables."""
        self._show("keeping variables: trying to load them in a fresh process")

    def read(self, size: int) -> None:
        """Show the bytes of tensors restored so far."""
        self._show(f"restoring variables: {bytes_(size)}")


_INTERVAL = 0.2


def restore(shell: Any, resumed: Resumed) -> list[str]:
    """Restore the kept variables; return a note for each thing to report."""
    payload = resumed.payload
    getattr(shell.compile, "_filename_map", {}).update(payload["cells"])
    session.restore_first(shell, payload["session"])
    outputs = shell.user_ns["_oh"]
    existing = {str(number): each for number, each in enumerate(_existing(shell).values())}
    with _Progress(shell, quiet=payload["quiet"]) as shown:
        devices = _Devices(payload["uuids"], payload["tensors_on"], shown)
        try:
            restored = variables.restore(
                shell.user_ns,
                resumed.files,
                existing=existing,
                location=devices.location,
                device_now=devices.now,
            )
        except Exception as error:
            return [
                f"The kept variables could not be restored: {text.named(error)}. "
                + _left_behind(resumed.files),
                *session.restore(shell, payload["session"]),
            ]
    _restore_outputs(shell, outputs, restored.names)
    notes = [
        *_notes(restored, payload, devices),
        *_notes_on_losses(restored, resumed),
    ]
    if restored.failures:
        notes.append(_left_behind(resumed.files))
    return [*notes, *session.restore(shell, payload["session"])]


def _notes(
    restored: variables.Restored, payload: Mapping[str, Any], devices: _Devices
) -> list[str]:
    """Return notes on what was restored, and how."""
    notes = [f"Kept: {', '.join(restored.names)}."] if restored.names else []
    if restored.imported:
        notes.append(f"Imported again: {', '.join(restored.imported)}.")
    notes += devices.notes({n: payload["devices"].get(n, set()) for n in restored.names})
    for what in sorted({each for found in payload["omitted"].values() for each in found}):
        names = [n for n in restored.names if what in payload["omitted"].get(n, ())]
        if names:
            notes.append(f"Kept without {what}: {', '.join(names)}.")
    if restored.separate_because is not None and restored.names:
        notes.append(
            "Restored one by one, since they do not load together "
            f"({restored.separate_because}): what several variables shared is separate now."
        )
    return notes


def _notes_on_losses(restored: variables.Restored, resumed: Resumed) -> list[str]:
    """Return notes on what was not restored, and why."""
    notes, payload = list[str](), resumed.payload
    if payload["lost_with_context"]:
        lost = text.listed(payload["lost_with_context"])
        notes.append(f"Could not be kept, since the GPU could not be read any more: {lost}.")
    for name, reason in {**payload["not_kept"], **restored.failures}.items():
        notes.append(f"Not kept: {name} ({reason}).")
    if restored.random_lost:
        notes.append(
            f"Not kept: CUDA's random state of {', '.join(restored.random_lost)} "
            + ("(it could not be read any more)." if payload["dead"] else "(hidden now).")
        )
    if restored.settings_lost:
        notes.append(f"Not as it was: {', '.join(restored.settings_lost)}.")
    for name, reason in restored.not_imported.items():
        notes.append(f"Not imported again: {name} ({reason}).")
    return notes


def _left_behind(files: Sequence[IO[bytes]]) -> str:
    folder = variables.preserve(files)
    return (
        f"All that was kept is in {folder} until you delete it; once the cause is removed: "
        f"from gpumagic.restart import variables; variables.load({folder!r}, 'NAME')."
    )


def _restore_outputs(shell: Any, outputs: dict[int, Any], names: Sequence[str]) -> None:
    """Put the kept values into IPython's own ``Out`` and ``_``."""
    namespace = shell.user_ns
    for name in _OUTPUTS:
        if name in names:
            outputs.update(namespace[name])
            namespace[name] = outputs
            namespace.update({f"_{number}": value for number, value in outputs.items()})
    for name in _LATEST:
        if name in names:
            setattr(shell.displayhook, name, namespace[name])


class _Devices:
    """The new ordinals of the old process's GPUs, and what was moved.

    Each GPU that had tensors and is hidden now has one in its place, as far as there are visible
    ones without tensors: what was on GPU 0 is on GPU 1 after ``%gpu 1 --restart --keep all``.
    """

    def __init__(self, uuids: Sequence[str], used: Sequence[int], shown: _Progress) -> None:
        self._uuids, self._used, self._shown = uuids, used, shown
        self._moved: set[str] = set()
        self._refused: dict[str, int] = {}
        self._size = 0

    def location(self, storage: Any, where: str) -> Any:
        """Move a storage: `torch.load`'s ``map_location``."""
        self._size += storage.nbytes()
        self._shown.read(self._size)
        kind, _, ordinal = where.partition(":")
        if kind != "cuda":
            return storage
        target = self.now(int(ordinal or 0))
        if target != "cpu":
            try:
                moved = storage.cuda(int(target[5:]))
            except RuntimeError:  # the device is full or fails
                self._refused[target] = self._refused.get(target, 0) + storage.nbytes()
                target = "cpu"
            else:
                other = " (another GPU)" * (int(ordinal or 0) in self._replaced)
                self._moved.add(f"{where} → {target}{other}")
                return moved
        self._moved.add(f"{where} → cpu")
        return storage

    def now(self, ordinal: int | None) -> str:
        """Return where the old ``cuda:ordinal`` is: ``cuda:N``, or ``cpu`` if nothing is."""
        torch = torch_cuda.require()
        if not torch.cuda.is_available():
            return "cpu"
        if ordinal is None:
            return "cuda"
        if ordinal >= len(self._uuids):
            return "cpu"
        torch.cuda.init()
        visible, uuid = driver.state().uuids or (), self._uuids[ordinal]
        if uuid in visible:
            return f"cuda:{visible.index(uuid)}"
        place = self._replaced.get(ordinal)
        return "cpu" if place is None else f"cuda:{place}"

    @cached_property
    def _replaced(self) -> dict[int, int]:
        """The new ordinals of other GPUs, by the old one of the hidden GPU that each replaces."""
        visible = driver.state().uuids or ()
        used = [n for n in self._used if n < len(self._uuids)]
        taken = {self._uuids[n] for n in used}
        hidden = [n for n in used if self._uuids[n] not in visible]
        others = [n for n, uuid in enumerate(visible) if uuid not in taken]
        return dict(zip(hidden, others, strict=False))

    def notes(self, named: Mapping[str, Collection[int | None]]) -> list[str]:
        """Return notes on what was moved: tensors, devices of variables, and to the CPU instead."""
        notes = [f"Tensors moved: {', '.join(sorted(self._moved))}."] if self._moved else []
        moved: dict[str, list[str]] = {}
        for name, ordinals in named.items():
            for ordinal in ordinals:
                before = "cuda" if ordinal is None else f"cuda:{ordinal}"
                now = self.now(ordinal)
                if now != before:
                    moved.setdefault(f"{before} → {now}", []).append(name)
        if moved:
            found = [f"{move} ({', '.join(names)})" for move, names in sorted(moved.items())]
            notes.append(f"Devices moved: {', '.join(found)}.")
        for target, size in self._refused.items():
            notes.append(
                f"On the CPU, since {target} has too little free memory for it: {bytes_(size)}."
            )
        return notes
