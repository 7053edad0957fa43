"""``%gpu restart``, ``%gpu SPEC --restart``: begin it in one process, report it in the next.

In the next one this module is an IPython extension, which `gpumagic.restart.after` needs no more
than any other: `before.restart` has named it on the command line.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from traceback import walk_stack
from typing import IO, Any, NoReturn

from gpumagic.cuda import driver, failure, init_trace, streams, torch_cuda
from gpumagic.cuda.process_state import STATE
from gpumagic.errors import RestartError
from gpumagic.magics.delivery import hand_over
from gpumagic.magics.live_display import LiveDisplay
from gpumagic.magics.shell_state import Magics, of
from gpumagic.render.units import bytes_
from gpumagic.restart import after, before, losses
from gpumagic.restart.handover import Kept
from gpumagic.selection import apply, claims, cpu_threads, environment, soft_off
from gpumagic.selection.spec import Spec
from gpumagic.system import import_path, text
from gpumagic.system.introspection import is_a, is_imported
from gpumagic.system.shell import Shell

#: Seconds of waiting after which it is said.
_SILENT = 0.5

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


def restart(magics: Magics, options: argparse.Namespace) -> NoReturn:
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
    as_now = {"no_claim": not STATE.choice.claim, "threads": threads}
    begin(magics, Spec("restart", "same"), argparse.Namespace(**{**vars(options), **as_now}))


def begin(magics: Magics, spec: Spec, options: argparse.Namespace) -> NoReturn:
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


def _begin(magics: Magics, spec: Spec, options: argparse.Namespace) -> NoReturn:
    shell, began = magics.shell, time.time()
    check(shell, force=options.force)
    comms = getattr(getattr(getattr(shell, "kernel", None), "comm_manager", None), "comms", ())
    payload: dict[str, Any] = {
        "began": began,
        "spec": spec,
        "started_with": environment.started_with(),
        "options": {"output": options.output, "variable": options.variable},
        "quiet": options.quiet,
        "threads": options.threads,
        "claim": not options.no_claim and bool(magics.claim),
        "variables": [*losses.variables(shell)],
        "comms": len(comms),
        "session": _session(shell),
        "kept": None,
    }
    target, variables, file = _target(shell), _environment(as_started=spec.kind == "same"), None
    with LiveDisplay(shell, quiet=options.quiet) as live:
        _wait_for_gpus(live)
        if options.keep:
            with import_path.restricted_to(import_path.module_folders()):
                file, payload["kept"] = _keep(shell, options, variables, live)
    payload["keeping"] = time.time() - began
    # Their open files are the claims of the chosen GPUs.
    claimed = claims.pass_on(variables)

    def last() -> None:
        watch = of(shell).watch
        if watch is not None:
            watch.end("the process was restarted")
        of(shell).hooks.clear()  # nothing is said of this cell

    before.restart(
        *(shell, __name__, variables, payload),
        file=file,
        inherited=claimed,
        target=target,
        last=last,
    )


def _wait_for_gpus(live: LiveDisplay) -> None:
    """Wait until the GPUs have finished: what they still write would be lost, or be kept half.

    A thread waits, since CUDA's own wait cannot be interrupted. It covers streams that are not
    torch's, and needs no memory: the GPU may be full.

    Raises:
        RestartError: there is work that cannot be waited for.
    """
    if failure.dead_context() is not None:
        return
    if any(streams.captures(torch_cuda.current_stream(each)) for each in torch_cuda.contexts()):
        raise RestartError("a CUDA graph is being captured: end that first")
    found = list[RuntimeError]()

    def wait() -> None:
        try:
            torch_cuda.synchronize_all()
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=wait, name="gpumagic-restart", daemon=True)
    thread.start()
    thread.join(_SILENT)
    if thread.is_alive():
        live.text("waiting for the GPUs; Ctrl-C ends it, and nothing changes")
    while thread.is_alive():
        thread.join(0.1)
    if found and failure.check_context() is None:
        raise RestartError(f"the GPUs cannot be waited for: {text.reason(found[0])}")


def _environment(*, as_started: bool) -> dict[str, str]:
    """Return the environment of the new process: the current one, under the choice just made.

    With ``as_started``: under the variables that CUDA has read here, where it has; a choice since
    then came too late.
    """
    variables, now = dict(os.environ), environment.now()
    if as_started and driver.is_initialized():
        now = environment.as_started(init_trace.environment_then())
    for name, value in now.items():
        variables.pop(name, None)
        if value is not None:
            variables[name] = value
    if init_trace.nvml_check_is_ours():
        del variables[init_trace.NVML_CHECK]
    return variables


def _target(shell: Shell) -> str | None:
    """Return the variable to which the cell assigns the magic's result, if it does.

    Raises:
        RestartError: the cell does something else with or after the magic, which would be lost.
    """
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        source = kernel.get_parent("shell").get("content", {}).get("code", "")
    else:
        source = shell.history_manager.input_hist_raw[-1]
    try:
        last: Any = ast.parse(shell.transform_cell(source)).body[-1]
    except (SyntaxError, IndexError):  # top-level await in a way that only IPython compiles
        last = None
    stack = walk_stack(sys._getframe())
    lines = [line for frame, line in stack if frame.f_globals is shell.user_ns]
    call = getattr(last, "value", None)
    if (
        len(lines) == 1
        and isinstance(call, ast.Call)
        and ast.unparse(call.func) == "get_ipython().run_line_magic"
        and last.lineno <= lines[0] <= last.end_lineno
    ):
        if isinstance(last, ast.Expr):
            return None
        if isinstance(last, ast.Assign) and len(last.targets) == 1:
            if isinstance(last.targets[0], ast.Name):
                return last.targets[0].id
            raise RestartError(
                f"{ast.unparse(last.targets[0])} is not there after a restart: assign its result "
                "to a plain name"
            )
    raise RestartError(
        "what follows a restart in the same cell would not be run: make it the last line of its "
        "cell, not inside a block or a function"
    )


def _keep(
    shell: Shell, options: argparse.Namespace, variables: Mapping[str, str], live: LiveDisplay
) -> tuple[IO[bytes], Any]:
    """Write the variables that are to be kept.

    Raises:
        RestartError: some cannot be kept, and ``--force`` was not given.
    """
    from gpumagic.restart import keep

    names = [name for word in options.keep for name in word.split(",") if name]
    optional = [name for name, each in losses.variables(shell).items() if is_imported(each)]
    if "all" in names and "all" not in shell.user_ns:
        optional += losses.unnamed(shell)
        names = [*losses.variables(shell), *(name for name in names if name != "all")]
    # What a notebook imports costs no memory, and the next cells need it.
    optional = [name for name in optional if name not in names]
    unknown = [name for name in names if name not in shell.user_ns]
    if unknown:
        hint = text.did_you_mean(unknown[0], losses.variables(shell))
        raise RestartError(f"there is no variable {' or '.join(unknown)} to keep{hint}")
    return keep.write(
        *(shell, dict.fromkeys([*optional, *names]), __name__, variables),
        optional=optional,
        force=options.force,
        say=live.text,
    )


# --- in the new process ---------------------------------------------------------------------------


def load_ipython_extension(shell: Shell) -> None:
    """Load gpumagic, and go on where the old process stopped."""
    shell.extension_manager.load_extension("gpumagic")
    after.go_on(shell, lambda *restarted: _report(shell, *restarted), _prepare)


def _prepare() -> None:
    """Import what draws the report."""
    from gpumagic.render import html, text  # noqa: F401


def _report(
    shell: Shell, payload: Mapping[str, Any], file: IO[bytes] | None, notes: list[str]
) -> Any:
    seconds = time.time() - payload["began"] - payload["keeping"]
    environment.start_from(payload["started_with"])
    spec = payload["spec"]
    chosen = apply.after_restart(spec, claim=payload["claim"])
    took, kept, cuda = f"{seconds:.1f} s", list[str](), chosen.cuda_initialized
    if file is not None:
        from gpumagic.restart import keep

        began = time.time()
        kept = [*_kept(keep.restore(file, shell, payload["kept"]), shell.user_ns)]
        took += f" ({payload['keeping']:.1f} s more to keep variables, "
        took += f"{time.time() - began:.1f} s to restore them)"
        chosen = replace(chosen, cuda_initialized=driver.state().initialized)
    said = (
        f"The process was restarted in place in {took}; numbering, inputs and working folder go "
        "on, outputs (Out) do not."
    )
    lost = tuple(name for name in payload["variables"] if name not in shell.user_ns)
    if chosen.cuda_initialized and not cuda:
        kept.append("CUDA was started by what came back; a forked process cannot use it.")
    elif spec.kind == "same" and cuda is False:
        said += " CUDA is not started."
    notes = [said, *([] if lost else ["No variable was lost."]), *kept, *notes]
    if payload["comms"]:
        notes.append("Widgets of the old process do not answer any more.")
    notes += [*_restore(shell, payload["session"]), *chosen.notes]
    chosen = replace(chosen, notes=tuple(notes), lost=lost)
    chosen = cpu_threads.with_threads(chosen, spec, payload["threads"])
    options = argparse.Namespace(**payload["options"], quiet=payload["quiet"])
    return hand_over(shell, chosen, options)


#: How tensors that are on the CPU now come to a GPU, by whether every GPU is hidden.
_BACK = {
    True: "To move tensors back: %gpu on for all GPUs, or %gpu NUMBER (after a backward pass with "
    "--restart --keep all), then .cuda().",
    False: "Their GPU is hidden now; .cuda() moves them to one that is not.",
}
_SET_AGAIN = "A torch.device, and torch's default device, must be set again."


def _kept(restored: Kept, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on what was restored, where to, and on what was not, and why."""
    for words, names in restored.notes.items():
        if names:
            yield f"{words} {', '.join(names)}."
    if restored.devices.moved:
        moved = f"Tensors and devices moved: {', '.join(sorted(restored.devices.moved))}."
        hidden = restored.devices.now("cuda") == "cpu"
        yield f"{moved} {_BACK[hidden]} {_SET_AGAIN}" if "cpu" in moved else moved
        kind = torch_cuda.module().optim.Optimizer
        found = [name for name, value in namespace.items() if is_a(value, kind)]
        if found and "cpu" in moved:
            calls = "; ".join(f"{name}.load_state_dict({name}.state_dict())" for name in found)
            yield f"After parameters were moved back, an optimizer's state follows by: {calls}."
    for device, size in restored.devices.refused.items():
        yield f"On the CPU, since {device} has too little free memory for it: {bytes_(size)}."
    for name, reason in restored.failed.items():
        yield f"Not kept: {name} ({reason})."


# --- what a session has turned on, turned on again in the process that replaces it ---------------


def _session(shell: Shell) -> dict[str, Any]:
    """Return the session's settings of gpumagic, and the magics that turn on what is on."""
    state = of(shell)
    return {
        "traits": state.magics.trait_values(config=True),
        "timings": state.named_timings,
        "lines": [*_modes(shell)],
    }


def _modes(shell: Shell) -> list[tuple[str, str]]:
    """Return name and line of each magic that turns on again what is on."""
    state, found = of(shell), list[tuple[str, str]]()
    timing, memory = state.cell_timing, state.cell_memory
    if timing is not None and timing.watching:
        found.append(("cudatime", f"on -q --above {timing.above:f}s"))
    if memory is not None and memory.watching:
        found.append(("gpumem", "on -q"))
    limit = sys.modules.get("gpumagic.memory.limit")
    if limit is not None and (size := limit.LIMIT.size) is not None:
        typed = f"{size:%}" if isinstance(size, float) else size
        found.append(("gpumem", f"limit -q {typed}"))
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline is not None and inline.flush_figures in shell.events.callbacks["post_execute"]:
        found.append(("matplotlib", "inline"))
    reloader = getattr(shell.magics_manager.registry.get("AutoreloadMagics"), "_reloader", None)
    if reloader is not None and reloader.enabled:
        found.append(("autoreload", "2" if reloader.check_all else "1"))
    return found


def _restore(shell: Shell, found: dict[str, Any]) -> list[str]:
    """Turn on what was on; return a note for what could not be."""
    state, notes = of(shell), []
    for name, value in found["traits"].items():
        setattr(state.magics, name, value)
    state.named_timings = found["timings"]
    for name, line in found["lines"]:
        try:
            shell.run_line_magic(name, line)
        except Exception as error:  # there is no GPU any more
            notes.append(f"Not on again: %{name} {line.split()[0]} ({text.reason(error)}).")
    return notes
