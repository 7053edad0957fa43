"""Load gpumagic into a shell, and unload it: all changes are undone by one `ExitStack`.

Loading imports no module that measures, draws or restarts; they are imported when first needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

from IPython.core.extensions import ExtensionManager

from gpumagic.cuda import nvml_check
from gpumagic.cuda.this_process import STATE
from gpumagic.magics.explaining import Explainer
from gpumagic.magics.magic_class import MAGICS, GpuMagic, grammar_of
from gpumagic.magics.magic_state import NAME, MagicState, find_state
from gpumagic.selection import init_trace
from gpumagic.system.shell import Shell

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext

    from gpumagic.results.base import Result

#: The class that every result is, by name: the module is imported when there is a result.
_RESULT = ("gpumagic.results.base", "Result")


def load(shell: Shell) -> None:
    """Load gpumagic into ``shell``; loading twice is loading once."""
    if find_state(shell) is not None:
        return
    state = GpuMagic(shell)
    undo = state.undo.callback
    if nvml_check.VARIABLE not in os.environ:
        os.environ[nvml_check.VARIABLE] = "1"
        # Child processes do not get it, but for a copy of this one.
        os.unsetenv(nvml_check.VARIABLE)
        STATE.nvml_check_set = True
    undo(_undo_of_process, state)
    _register_magics(state)
    _add(state, shell.input_transformers_post, _transformer(state))
    if (matcher := _matcher(shell)) is not None:
        _add(state, shell.Completer.custom_matchers, matcher)
    _add_format(state)
    undo(init_trace.detach)
    undo(state.hooks.clear)
    undo(_leave_cluster, shell)
    if not hasattr(shell.compile, "_filename_map"):  # before IPython 8
        from gpumagic.cells.compile import keep_numbers

        undo(keep_numbers(shell.compile))
    init_trace.attach(shell, state.hooks)
    state.hooks.add(Explainer(state))
    if "torch" in sys.modules:
        # All GPUs may have been hidden when torch tried to initialise CUDA.
        from gpumagic.cuda import init_failure

        init_failure.note_mask(os.environ)
        init_failure.note_mask(STATE.started_with)


def unload(shell: Shell) -> None:
    """Unload gpumagic from ``shell``; a failure is one line, and the rest is undone.

    Not where ``%reload_ext`` unloads only to load again: nothing that is on, and no choice, log or
    name is lost by it.
    """
    state = find_state(shell)
    if state is None or _is_reloading():
        return
    try:
        state.undo.close()
    except Exception as error:  # the user may have unloaded a part of torch
        from gpumagic.system import output, text

        output.complain(f"gpumagic: not everything could be undone ({text.named(error)})")


def _is_reloading() -> bool:
    """Return whether IPython unloads only to load again: it says so by its running function."""
    reloading: Any = ExtensionManager.reload_extension
    return any(frame.f_code is reloading.__code__ for frame, _ in walk_stack(sys._getframe()))


# --- what loading adds to the shell ---------------------------------------------------------------


def _register_magics(state: MagicState) -> None:
    """Register the magics; unloading brings back other magics of the same names."""
    shell, manager = state.shell, state.shell.magics_manager
    before = {
        kind: {name: functions[name] for name in MAGICS if name in functions}
        for kind, functions in manager.magics.items()
    }
    shell.register_magics(state)

    def undo() -> None:
        for kind, theirs in before.items():
            for name in MAGICS:
                manager.magics[kind].pop(name, None)
            manager.magics[kind].update(theirs)
        manager.registry.pop(NAME, None)
        if state in shell.configurables:
            shell.configurables.remove(state)

    state.undo.callback(undo)


def _add(state: MagicState, to: list[Any], function: object) -> None:
    """Add a function to one of the shell's lists, which the user may empty, until unloading."""
    to.append(function)
    state.undo.callback(lambda: to.remove(function) if function in to else None)


def _transformer(state: MagicState) -> Callable[[list[str]], list[str]]:
    """Return the transformer by which IPython awaits a cell magic whose code has an await."""

    def runs_here(name: str, line: str) -> bool:
        words, _, _ = grammar_of(name).take_options(line)
        return {"--cluster", "--help", "-h"}.isdisjoint(words)

    def transform(lines: list[str]) -> list[str]:
        from gpumagic.cells.magic_calls import prepare_call

        return prepare_call(lines, state.shell, runs_here, state)

    return transform


def _matcher(shell: Shell) -> Any:
    """Return a matcher for IPython's completer; None where it has none of its kind (before 8.6)."""
    try:
        from IPython.core.completer import context_matcher
    except ImportError:
        return None

    @context_matcher(identifier="gpumagic")  # type: ignore[untyped-decorator]
    def match(context: CompletionContext) -> Any:
        with suppress(Exception):  # IPython's own completions must go on
            if "%" in context.text_until_cursor:
                from gpumagic.magics import completion

                return completion.match(shell, context)
        return {"completions": [], "suppress": False}

    return match


def _add_format(state: MagicState) -> None:
    """Have IPython format results by their MIME bundle."""
    formatter = state.shell.display_formatter.mimebundle_formatter

    def format_(result: Result, include: object = None, exclude: object = None) -> dict[str, str]:
        from gpumagic.magics.delivery import format_result

        return format_result(state, result)

    formatter.for_type_by_name(*_RESULT, format_)

    def undo() -> None:
        formatter.deferred_printers.pop(_RESULT, None)
        for type_ in [t for t in formatter.type_printers if t.__module__ == _RESULT[0]]:
            formatter.pop(type_)

    state.undo.callback(undo)


# --- what the magics have changed -----------------------------------------------------------------


def _leave_cluster(shell: Shell) -> None:
    connection = sys.modules.get("gpumagic.cluster.connection")
    if connection is not None:
        connection.close(shell)


def _undo_of_process(state: MagicState) -> None:
    """Undo the changes of this process; a failure of one is raised when the others are undone."""
    from gpumagic.memory import exact_peaks, limit
    from gpumagic.selection import claims, cpu_threads, soft_off

    with ExitStack() as undo:
        undo.callback(soft_off.lift)
        undo.callback(limit.LIMIT.lift)
        undo.callback(exact_peaks.LEDGER.leave)
        undo.callback(_undo_choice, state)
        undo.callback(cpu_threads.undo)
        undo.callback(claims.release)
        undo.callback(nvml_check.withdraw)


def _undo_choice(state: MagicState) -> None:
    """Restore the variables, and say so: code that runs next may get another GPU."""
    from gpumagic.cuda import driver
    from gpumagic.magics.delivery import say
    from gpumagic.selection import environment

    restored = environment.undo().items()
    if restored and not state.quiet:
        now = [f"{name} is {'not set' if value is None else value}" for name, value in restored]
        kept = "; CUDA has started, and keeps its GPUs here" if driver.is_initialized() else ""
        say(state.shell, f"gpumagic: its choice of GPUs is undone: {', '.join(now)}{kept}")
