"""``%gpu SPEC --restart``: begin the restart in one process, report it in the next."""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any, NoReturn

from gpumagic.cells import tracebacks
from gpumagic.errors import RestartError
from gpumagic.magics.extension import of
from gpumagic.magics.output import hand_over
from gpumagic.restart import in_place, resuming, signals
from gpumagic.results import Selection
from gpumagic.selection import apply, cpu_threads, environment
from gpumagic.selection.spec import parse
from gpumagic.system import import_path


def begin(magics: Any, chosen: Selection, options: argparse.Namespace, *, silent: bool) -> NoReturn:
    """Restart the kernel under the variables just written: the choice is too late in this process.

    Raises:
        RestartError: refused; nothing has changed.
    """
    with import_path.restricted_to(import_path.module_folders()):
        _begin(magics.shell, chosen, options, silent=silent)
    raise AssertionError("unreachable")


def _begin(shell: Any, chosen: Selection, options: argparse.Namespace, *, silent: bool) -> NoReturn:
    check(shell, force=options.force)
    variables = _environment(shell)
    payload: dict[str, Any] = {
        "spec": chosen.requested,
        "started_with": environment.started_with(),
        "options": {"output": options.output, "variable": options.variable},
        "quiet": options.quiet or silent,
        "target": _target(shell),
        "threads": options.threads,
        "claim": not options.no_claim and bool(of(shell).magics.claim),
        "outputs": bool(shell.user_ns.get("_oh")),
    }
    with contextlib.ExitStack() as ending:
        with signals.interrupts_after():  # the child is known before
            trial = ending.enter_context(in_place.trial(shell, variables))
        files: list[IO[bytes]] = []
        if options.keep:
            from gpumagic.magics.gpu import keep_variables

            files = keep_variables.write(shell, options, payload, variables)
        for file in files:
            ending.callback(file.close)
        from gpumagic.magics.gpu import watch

        ending.enter_context(watch.ended_for_restart(shell))
        in_place.restart(shell, variables, payload, trial, files=files, force=options.force)
    raise AssertionError("unreachable")


def check(shell: Any, *, force: bool = False) -> None:
    """Return if the process of ``shell`` can be restarted in place.

    Raises:
        RestartError: it cannot, and why; ``force`` overrides what would only be lost.
    """
    if os.getpid() != of(shell).pid:
        raise RestartError("this is a forked copy of the kernel; restart the kernel itself")
    in_place.check(shell, force=force)


def _environment(shell: Any) -> dict[str, str]:
    """Return the environment of the new process: the current one, under the choice just made."""
    variables = dict(os.environ)
    for name, value in environment.now().items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    for name in of(shell).own_variables():
        variables.pop(name, None)
    return variables


def _target(shell: Any) -> str | None:
    """Return the variable to which the cell assigns the magic's result, if it does.

    Raises:
        RestartError: the cell does something else with or after the magic, which would be lost.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        source = kernel.get_parent("shell").get("content", {}).get("code", "")
    else:
        source = shell.history_manager.input_hist_raw[-1]
    lines = _lines_of_user(shell)
    try:
        statements = ast.parse(shell.transform_cell(source)).body
    except SyntaxError:  # top-level await in a way that only IPython compiles
        statements = []
    last = statements[-1] if statements else None
    if len(lines) == 1 and last is not None and last.lineno <= lines[0] <= (last.end_lineno or 0):
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


def _lines_of_user(shell: Any) -> list[int]:
    """Return the lines at which the user's code is running: one, if the magic is in a cell."""
    stack = tracebacks.stack(sys._getframe())
    return [frame.f_lineno for frame in stack if frame.f_globals is shell.user_ns]


def resume(shell: Any, state: Mapping[str, Any]) -> None:
    """Continue in the process that has replaced the one that wrote ``state``."""
    resuming.resume(shell, of(shell).hooks, state, lambda resumed: _report(shell, resumed))


def _report(shell: Any, resumed: resuming.Resumed) -> Any:
    payload = resumed.payload
    environment.start_from(payload["started_with"])
    spec = parse(payload["spec"])
    chosen = apply.after_restart(spec, claim=payload["claim"])
    began = time.monotonic()
    restored: list[str] = []
    if resumed.files:
        from gpumagic.magics.gpu import keep_variables

        restored = keep_variables.restore(shell, resumed)
    notes = [*_notes(shell, resumed, time.monotonic() - began), *restored]
    missing = tuple(name for name in resumed.variables if name not in shell.user_ns)
    notes = [*notes, *chosen.notes]
    chosen = replace(chosen, notes=tuple(notes), lost=missing)
    chosen = cpu_threads.with_threads(chosen, spec, payload["threads"])
    options = argparse.Namespace(**payload["options"], quiet=payload["quiet"])
    # Drawing the report uses random numbers: rich does when it is imported.
    numbers = random.getstate()
    value = hand_over(shell, chosen, options)
    random.setstate(numbers)
    if payload["target"] is not None:
        shell.user_ns[payload["target"]] = value
        return None
    return value


def _notes(shell: Any, resumed: resuming.Resumed, restoring: float) -> list[str]:
    """Return notes on the time of the restart, and on what of the old process is lost."""
    took = f"{resumed.seconds - restoring:.1f} s"
    if resumed.files:
        keeping = resumed.payload["keeping"]
        took += f" ({keeping:.1f} s more to keep variables, {restoring:.1f} s to restore them)"
    lines = [
        f"The kernel was restarted in place in {took}; numbering, inputs and working folder go on.",
    ]
    if all(name in shell.user_ns for name in resumed.variables):
        lines.append("No variable was lost.")
    if resumed.lost:
        lines.append(f"Lost: {', '.join(resumed.lost)}.")
    if resumed.payload["outputs"] and not shell.user_ns.get("_oh"):
        lines.append("Out is empty.")
    return lines
