"""``%gpu SPEC --restart``: asked for in one process, reported by the one that replaces it."""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import IO, Any, NoReturn

from gpumagic import choice, driver, keep, restart, selection, threads, torch_cuda
from gpumagic.display.units import bytes_
from gpumagic.errors import RestartError
from gpumagic.magics.show import LiveDisplay, hand_over
from gpumagic.restart import handover
from gpumagic.restart.leaving import variables
from gpumagic.results import Selection


def begin(magics: Any, chosen: Selection, options: argparse.Namespace, *, silent: bool) -> NoReturn:
    """Restart the kernel under the variables that have just been written: a choice, but too late.

    Raises:
        RestartError: refused; the kernel goes on as it was.
    """
    shell = magics.shell
    restart.check(shell, force=options.force)
    environment = _environment(shell)
    payload: dict[str, Any] = {
        "spec": chosen.requested,
        "saved": chosen.notes[-1:] if options.save else (),
        "started_with": choice.started_with(),
        "options": {"output": options.output, "variable": options.variable},
        "quiet": options.quiet or silent,
        "target": _target(shell),
        "threads": options.threads,
    }
    with contextlib.ExitStack() as ending:
        tried = ending.enter_context(restart.trial(shell, environment))
        files: list[IO[bytes]] = []
        if options.keep:
            files = _keep(shell, options, payload)
        for file in files:
            ending.callback(file.close)
        restart.restart(
            shell,
            environment,
            payload,
            tried,
            files=files,
            kept=payload.get("kept", ()),
            force=options.force,
        )
    raise AssertionError("unreachable")


def _environment(shell: Any) -> dict[str, str]:
    """The environment of the new process: the present one, under the choice just made."""
    environment = dict(os.environ)
    for name, value in choice.now().items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    for name in shell._gpumagic.own_variables():
        environment.pop(name, None)
    return environment


def _keep(shell: Any, options: argparse.Namespace, payload: dict[str, Any]) -> list[IO[bytes]]:
    """Write the variables that are to be kept; what became of them goes into ``payload``.

    Raises:
        RestartError: some cannot be kept, and ``--force`` was not given.
    """
    present = variables(shell)
    names = [name for word in options.keep for name in word.split(",") if name]
    if names == ["all"]:
        names = list(present)
    unknown = [name for name in names if name not in shell.user_ns]
    if unknown:
        raise RestartError(f"there is no variable {' or '.join(unknown)} to keep")
    chosen = keep.plan(shell.user_ns, names)
    if chosen.failures and not options.force:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in chosen.failures.items())
        raise RestartError(f"cannot keep {reasons}. Keep others, or add --force to lose these")
    payload["kept"] = [*chosen.names, *chosen.needed]
    payload["not_kept"] = chosen.failures
    payload["uuids"] = driver.state().uuids or ()
    with LiveDisplay(shell, quiet=payload["quiet"]) as live:

        def progress(written: int, expected: int) -> None:
            live.text(f"keeping variables: {bytes_(written)} of {bytes_(expected)}")

        return keep.save(shell.user_ns, chosen, handover.create, progress)


def _target(shell: Any) -> str | None:
    """The variable that the cell assigns the magic's result to, if it does.

    Raises:
        RestartError: the cell does something else with or after the magic, which would be lost.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        source = kernel.get_parent("shell").get("content", {}).get("code", "")
    else:
        source = shell.history_manager.input_hist_raw[-1]
    frames = _frames_of_user(shell)
    try:
        statements = ast.parse(shell.transform_cell(source)).body
    except SyntaxError:  # top-level await in a way that only IPython compiles
        statements = []
    last = statements[-1] if statements else None
    if len(frames) == 1 and last is not None and last.lineno <= frames[0] <= (last.end_lineno or 0):
        value = getattr(last, "value", None)
        direct = isinstance(value, ast.Call) and ast.unparse(value.func).startswith(
            "get_ipython().run_line_magic"
        )
        if direct and isinstance(last, ast.Expr):
            return None
        if direct and isinstance(last, ast.Assign) and len(last.targets) == 1:
            target = last.targets[0]
            if isinstance(target, ast.Name):
                return target.id
    raise RestartError(
        "what follows a restart in the same cell would not be run: make %gpu … --restart the last "
        "line of its cell, not inside a block or a function"
    )


def _frames_of_user(shell: Any) -> list[int]:
    """The lines at which the user's own code is being run: one, if the magic stands in a cell."""
    lines = []
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals is shell.user_ns:
            lines.append(frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return lines


def resume(shell: Any, state: Mapping[str, Any]) -> None:
    """Take over from the process that this one has replaced, which has left ``state``."""
    restart.resume(shell, state, lambda resumed: _report(shell, resumed))


def _report(shell: Any, resumed: restart.Resumed) -> Any:
    payload = resumed.payload
    choice.start_from(payload["started_with"])
    chosen = selection.restarted(payload["spec"])
    notes = _notes(resumed)
    if resumed.files:
        notes += _bring_back(shell, resumed)
    chosen = replace(chosen, notes=(*notes, *chosen.notes, *payload["saved"]))
    chosen = threads.noted(chosen, payload["threads"])
    options = argparse.Namespace(**payload["options"], quiet=payload["quiet"])
    value = hand_over(shell, chosen, options)
    if payload["target"] is not None:
        shell.user_ns[payload["target"]] = value
        return None
    return value


def _notes(resumed: restart.Resumed) -> list[str]:
    lost = ", ".join(resumed.lost)
    return [
        f"The kernel was restarted in place in {resumed.seconds:.1f} s; numbering, inputs and "
        "working folder go on.",
        f"Lost: {lost}." if lost else "No variable was lost.",
    ]


def _bring_back(shell: Any, resumed: restart.Resumed) -> list[str]:
    """Bring the kept variables back, and say what became of them."""
    payload, moved = resumed.payload, set[str]()

    def location(storage: Any, where: str) -> Any:
        kind, _, ordinal = where.partition(":")
        if kind != "cuda":
            return storage
        target = _same_device(payload["uuids"], int(ordinal or 0))
        moved.add(f"{where} → {target}")
        return storage if target == "cpu" else storage.cuda(int(target[5:]))

    try:
        failures = keep.restore(shell.user_ns, resumed.files, location)
    except Exception as error:
        return [f"The kept variables could not be brought back: {type(error).__name__}: {error}"]
    back = [name for name in payload["kept"] if name not in failures]
    notes = [f"Kept: {', '.join(back)}."] if back else []
    notes += [f"Tensors moved: {', '.join(sorted(moved))}."] if moved else []
    for name, reason in {**payload["not_kept"], **failures}.items():
        notes.append(f"Not kept: {name} ({reason}).")
    return notes


def _same_device(uuids: Sequence[str], ordinal: int) -> str:
    """Where the old process's ``cuda:ordinal`` is now: ``cuda:N``, or ``cpu`` if it is hidden."""
    torch = torch_cuda.require()
    if not torch.cuda.is_available() or ordinal >= len(uuids):
        return "cpu"
    torch.cuda.init()
    now = driver.state().uuids or ()
    return f"cuda:{now.index(uuids[ordinal])}" if uuids[ordinal] in now else "cpu"
