"""``%gpu restart``, ``%gpu SPEC --restart``: begin it; `restart_report` ends it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from gpumagic.cuda import driver, failure, initialization, streams, torch_cuda
from gpumagic.cuda.this_process import STATE
from gpumagic.errors import RestartError
from gpumagic.magics.gpu import last_line, session
from gpumagic.magics.gpu.gpu_options import ChoiceOptions, RestartOptions
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.shell_state import ShellState, of
from gpumagic.restart import before, losses
from gpumagic.selection import claims, environment, soft_off
from gpumagic.selection.spec import Spec
from gpumagic.system import text
from gpumagic.system.introspection import is_imported
from gpumagic.system.shell import Shell
from gpumagic.wording import did_you_mean

#: The IPython extension that goes on in the new process.
_REPORT = "gpumagic.magics.gpu.restart_report"

Restarting = before.Restarting


def check(shell: Shell, *, force: bool = False) -> None:
    """Return if the process of ``shell`` can be restarted in place.

    Raises:
        RestartError: it cannot, and why; ``force`` overrides what would only be lost.
    """
    if os.getpid() != of(shell).pid:
        raise RestartError(
            "this is a forked copy of the notebook process; restart the notebook process itself"
        )
    before.check(shell, force=force)


def restart(magics: ShellState, options: RestartOptions) -> NoReturn:
    """Restart the notebook process with the GPUs, the claim and the CPU threads that it has.

    Raises:
        RestartError, Restarting: as for `begin`.
    """
    if soft_off.is_closed():
        raise RestartError(
            "this process refuses the GPU since '%gpu off --soft': write %gpu off --restart, or "
            "%gpu on before %gpu restart"
        )
    threads = None if STATE.choice.threads is None else STATE.choice.threads.current
    as_now = ChoiceOptions(**vars(options), no_claim=not STATE.choice.claim, threads=threads)
    begin(magics, Spec("restart", "same"), as_now)


def begin(magics: ShellState, spec: Spec, options: ChoiceOptions) -> NoReturn:
    """Restart the kernel under the variables as they are now, those of the choice ``spec``.

    Raises:
        RestartError: refused or interrupted; nothing has changed.
        Restarting: the restart begins when the cell has ended.
    """
    try:
        _begin(magics, spec, options)
    except KeyboardInterrupt:
        raise RestartError("the restart was interrupted; this process goes on as it was") from None
    except OSError as error:  # too many open files, for example
        raise RestartError(f"{text.reason(error)}; this process goes on as it was") from None


def _begin(magics: ShellState, spec: Spec, options: ChoiceOptions) -> NoReturn:
    shell, began = magics.shell, time.time()
    check(shell, force=options.force)
    comms = getattr(getattr(getattr(shell, "kernel", None), "comm_manager", None), "comms", ())
    payload: dict[str, Any] = {
        "began": began,
        "spec": spec,
        "auto": STATE.choice.auto,
        "started_with": environment.started_with(),
        "options": {"output": options.output, "variable": options.variable},
        "quiet": options.quiet,
        "threads": options.threads,
        "claim": not options.no_claim and bool(magics.claim),
        "variables": [*losses.variables(shell)],
        "comms": len(comms),
        "session": session.read(shell),
        "ended": losses.running(shell.user_ns),
        "kept": None,
    }
    target, file, final = last_line.target(shell), None, list[Any]()
    variables = _environment(as_started=spec.kind == "same")
    with LiveDisplay(shell, quiet=options.quiet) as live:
        _wait_for_gpus(live)
        names = _wanted(shell, options.keep)
        if names is not None:
            from gpumagic.restart.variables import keep

            file, payload["kept"], final = keep.write(
                *(shell, names, _REPORT, variables),
                force=options.force,
                again=f"{options.typed} --force",
                say=live.text,
            )
    payload["keeping"] = time.time() - began
    # Their open files are the claims of the chosen GPUs.
    claimed = claims.pass_on(variables)

    def last() -> None:
        for each in final:
            each.atexit = False
        watch = of(shell).watch
        if watch is not None:
            watch.end("the process was restarted")
        of(shell).hooks.clear()  # nothing is said of this cell

    try:
        before.restart(
            *(shell, _REPORT, variables, payload),
            file=file,
            inherited=claimed,
            target=target,
            last=last,
        )
    except Exception:  # not `Restarting`, which the new process follows
        if file is not None:
            file.close()
        raise


def _wait_for_gpus(live: LiveDisplay) -> None:
    """Wait until the GPUs have finished: what they still write would be lost, or be kept half.

    Raises:
        RestartError: there is work that cannot be waited for.
    """
    if STATE.dead_context is not None:
        return
    if any(streams.captures(torch_cuda.current_stream(each)) for each in torch_cuda.contexts()):
        raise RestartError("a CUDA graph is being captured: end that first")
    try:
        waits = "waiting for the GPUs; Ctrl-C ends it, and nothing changes"
        torch_cuda.wait_for_all(lambda: live.text(waits))
    except RuntimeError as error:
        if failure.check_context() is None:
            raise RestartError(f"the GPUs cannot be waited for: {text.reason(error)}") from None


def _environment(*, as_started: bool) -> dict[str, str]:
    """Return the environment of the new process: the current one, under the choice just made.

    With ``as_started``: under the variables that CUDA has read here, where it has; a choice since
    then came too late.
    """
    variables, now = dict(os.environ), environment.now()
    if as_started and driver.is_initialized():
        now = environment.as_started(initialization.environment_then())
    for name, value in now.items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    if initialization.nvml_check_is_ours():
        del variables[initialization.NVML_CHECK]
    return variables


def _wanted(shell: Shell, words: Sequence[str] | None) -> dict[str, bool] | None:
    """Return the variables to keep, by ``--keep`` or its absence; None is for ``--keep none``.

    True is for those that are asked for: not for what has only to be kept where it can be.

    Raises:
        RestartError: there is no such variable.
    """
    mine = losses.variables(shell)
    names = [name for word in words or () for name in word.split(",") if name]
    if names == ["none"]:
        return None
    if words is None or "all" in names:
        return {**dict.fromkeys(losses.unnamed(shell), False), **dict.fromkeys(mine, True)}
    unknown = [name for name in names if name not in shell.user_ns]
    if unknown:
        hint = did_you_mean(unknown[0], mine)
        raise RestartError(f"there is no variable {' or '.join(unknown)} to keep{hint}")
    # What a notebook imports costs no memory, and the next cells need it.
    imported = [name for name, value in mine.items() if is_imported(value)]
    return {**dict.fromkeys(imported, False), **dict.fromkeys(names, True)}
