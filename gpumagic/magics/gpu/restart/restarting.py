"""``%gpu restart``, ``%gpu SPEC --restart``: begin it; `report` ends it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, NoReturn

from gpumagic.cells import user_names
from gpumagic.cuda import dead_context, driver, nvml_check
from gpumagic.cuda.pytorch import graph_captures, torch_cuda, waiting
from gpumagic.cuda.this_process import STATE
from gpumagic.errors import RestartError
from gpumagic.magics.gpu.gpu_options import ChoiceOptions, KeepOptions, RestartOptions
from gpumagic.magics.gpu.restart import assigned_name, modes_over_restart
from gpumagic.magics.gpu.restart.modes_over_restart import Session
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.magic_state import MagicState, state_of
from gpumagic.restart import before, program, running
from gpumagic.selection import claims, environment, soft_off
from gpumagic.selection.spec import Spec
from gpumagic.system import introspection, text
from gpumagic.system.shell import Shell
from gpumagic.wording import did_you_mean

if TYPE_CHECKING:
    from gpumagic.restart.variables.manifest import Manifest

#: The IPython extension that goes on in the new process.
_REPORT = "gpumagic.magics.gpu.restart.report"

Restarting = before.Restarting


def check(shell: Shell, *, force: bool = False) -> None:
    """Return if the process of ``shell`` can be restarted in place.

    Raises:
        RestartError: it cannot, and why; ``force`` overrides what would only be lost.
    """
    if os.getpid() != state_of(shell).pid:
        raise RestartError(
            "this is a forked copy of the notebook process; restart the notebook process itself"
        )
    before.check(shell, force=force)


@dataclass(frozen=True)
class Begun:
    """A restart as the old process has begun it, for its report in the new one."""

    #: When it began, as `time.time` has it, and the seconds that went into the variables.
    began: float
    keeping: float
    #: The choice, and whether it is claimed; the environment before the first choice.
    spec: Spec
    options: ChoiceOptions
    claim: bool
    auto: Any
    started_with: Mapping[str, str | None]
    #: All variables that the notebook had, and those that are kept.
    variables: Sequence[str]
    kept: Manifest | None
    #: What a restart ends: threads, tasks and child processes; how many widgets.
    ended: Sequence[str]
    widgets: int
    session: Session


def restart(magics: MagicState, options: RestartOptions) -> NoReturn:
    """Restart the notebook process with the GPUs, the claim and the CPU threads that it has.

    Raises:
        RestartError, Restarting: as for `begin`.
    """
    if soft_off.is_closed():
        raise RestartError(
            "this process refuses the GPU since '%gpu off --soft': write %gpu off --restart, or "
            "%gpu on before %gpu restart"
        )
    as_now = ChoiceOptions(**vars(options), no_claim=not claims.held())
    begin(magics, Spec("restart", "same"), as_now)


def begin(magics: MagicState, spec: Spec, options: ChoiceOptions) -> NoReturn:
    """Restart the kernel under the variables as they are now, those of the choice ``spec``.

    Raises:
        RestartError: refused or interrupted; nothing has changed.
        Restarting: the restart begins when the cell has ended.
    """
    shell, began, file = magics.shell, time.time(), None
    if options.threads is None and STATE.choice.threads and spec.kind not in ("on", "reset"):
        options = replace(options, threads=torch_cuda.cpu_threads())
    try:
        check(shell, force=options.force)
        target, variables = assigned_name.read(shell), _environment(as_started=spec.kind == "same")
        program.check_environment(variables)
        ended, wanted = running.named(shell.user_ns), _wanted(shell, options.keep)
        file, kept = _write(shell, wanted, variables, options)
        comms = getattr(getattr(getattr(shell, "kernel", None), "comm_manager", None), "comms", ())
        begun = Begun(
            began=began,
            keeping=time.time() - began,
            spec=spec,
            options=options,
            claim=not options.no_claim and bool(magics.claim),
            auto=STATE.choice.auto,
            started_with=environment.at_process_start(),
            variables=[*user_names.variables(shell)],
            kept=kept,
            ended=ended,
            widgets=len(comms),
            session=modes_over_restart.read(shell),
        )
        before.restart(
            *(shell, _REPORT, variables, begun),
            file=file,
            # Their open files are the claims of the chosen GPUs.
            inherited=claims.pass_on(variables),
            target=target,
            last=lambda: _end(magics),
        )
    except BaseException as error:
        if file is not None and not isinstance(error, Restarting):  # the new process reads it
            file.close()
        if isinstance(error, KeyboardInterrupt):
            why = "the restart was interrupted"
        elif isinstance(error, OSError):  # too many open files, for example
            why = text.reason(error)
        else:
            raise
        raise RestartError(f"{why}; this process goes on as it was") from None


def _write(
    shell: Shell,
    names: dict[str, bool] | None,
    variables: Mapping[str, str],
    options: KeepOptions,
) -> tuple[IO[bytes] | None, Manifest | None]:
    """Write the variables that are kept, when the GPUs have finished; see `keeping.write`."""
    with LiveDisplay(shell, quiet=options.quiet) as live:
        _wait_for_gpus(live)
        if names is None:
            return None, None
        from gpumagic.restart.variables import keeping

        return keeping.write(
            *(shell, names, _REPORT, variables), force=options.force, say=live.text
        )


def _end(state: MagicState) -> None:
    """End what would speak at the end of this process."""
    if state.watch is not None:
        state.watch.end("the process was restarted")
    state.hooks.clear()  # nothing is said of this cell


def _wait_for_gpus(live: LiveDisplay) -> None:
    """Wait until the GPUs have finished: what they still write would be lost, or be kept half.

    Raises:
        RestartError: there is work that cannot be waited for.
    """
    if STATE.dead_context is not None:
        return
    if any(
        graph_captures.is_capturing(torch_cuda.current_stream(each))
        for each in torch_cuda.contexts()
    ):
        raise RestartError("a CUDA graph is being captured: end that first")
    try:
        waits = "waiting for the GPUs; Ctrl-C ends it, and nothing changes"
        waiting.wait_for_all(lambda: live.text(waits))
    except RuntimeError as error:
        if dead_context.check() is None:
            raise RestartError(f"the GPUs cannot be waited for: {text.reason(error)}") from None


def _environment(*, as_started: bool) -> dict[str, str]:
    """Return the environment of the new process: the current one, under the choice just made.

    With ``as_started``: under the variables that CUDA has read here, where it has; a choice since
    then came too late.
    """
    variables, now = dict(os.environ), environment.now()
    if as_started and driver.is_initialized():
        now = environment.read_by_cuda()
    for name, value in now.items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    if nvml_check.is_ours():
        del variables[nvml_check.VARIABLE]
    return variables


def _wanted(shell: Shell, words: Sequence[str] | None) -> dict[str, bool] | None:
    """Return the variables to keep, by ``--keep`` or its absence; None is for ``--keep none``.

    True is for those that are asked for: not for what has only to be kept where it can be.

    Raises:
        RestartError: there is no such variable.
    """
    mine = user_names.variables(shell)
    # Where a notebook binds `_`, it is mostly to what nobody needs.
    needed = {name: name not in user_names.UNDERSCORES for name in mine}
    names = [name for word in words or () for name in word.split(",") if name]
    if names == ["none"]:
        return None
    if words is None or "all" in names:
        return needed
    unknown = [name for name in names if name not in shell.user_ns]
    if unknown:
        hint = did_you_mean(unknown[0], mine)
        raise RestartError(f"there is no variable {' or '.join(unknown)} to keep{hint}")
    # What a notebook imports costs no memory, and the next cells need it.
    return {**dict.fromkeys(_imported(mine, shell), False), **dict.fromkeys(names, True)}


def _imported(mine: Mapping[str, Any], shell: Shell) -> list[str]:
    """Return the names that an import has bound: some module has the same object by this name."""
    modules = [introspection.module_attributes(each) for each in [*sys.modules.values()]]
    others, nothing = [each for each in modules if each is not shell.user_ns], object()
    return [
        name
        for name, value in mine.items()
        if introspection.is_imported(value)
        or any(dict.get(each, name, nothing) is value for each in others)
    ]
