"""Loading and unloading: what ``%load_ext gpumagic`` registers and ``%unload_ext`` takes back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from traitlets import Bool, Unicode

from gpumagic.cells.cancellation import end_abandoned
from gpumagic.cuda import init_trace, nvml_check

_NAMES = ("gpu", "cudatime", "gpumem")

#: The class that every result is, by name: the module is imported when there is a result.
_RESULT = ("gpumagic.results.base", "Result")


def _documented(name: str) -> Callable[[Any], Any]:
    """Give a magic its help, generated from its parser when somebody asks (``%gpu?``)."""

    def decorate(function: Any) -> Any:
        # IPython's inspector asks an object's own getdoc() first.
        function.getdoc = lambda: import_module(f"gpumagic.magics.{name}.command").help_text()
        return function

    return decorate


@magics_class
class GpuMagic(Magics):
    """Defaults of gpumagic's magics."""

    quiet = Bool(False, help="Print nothing, as with -q on every call; nor lines after cells.").tag(
        config=True
    )
    min_free = Unicode(
        "", help="What '%gpu auto' asks of a device when --min-free is not given, e.g. '20GiB'."
    ).tag(config=True)
    max_util = Unicode(
        "", help="What '%gpu auto' asks of a device when --max-util is not given, in percent."
    ).tag(config=True)

    explain_oom = Bool(
        True, help="Say below the traceback why GPU memory ran out ('%gpumem explain off' too)."
    ).tag(config=True)

    #: What `%gpumem` showed last in this shell, to tell the change since.
    previous_report: Any = None
    #: The results of `%cudatime --name`, by name.
    named_timings: dict[str, Any] | None = None

    def _run(self, name: str, line: str, cell: str | None, local_ns: Any = None) -> Any:
        """Call a magic's module; turn gpumagic's own errors into one line."""
        __tracebackhide__ = True
        from gpumagic.errors import GpuMagicError, RegressionError

        try:
            magic = import_module(f"gpumagic.magics.{name}.command")
        except KeyboardInterrupt:  # where we are imported says nothing to the user
            raise UsageError("interrupted; nothing was changed") from None
        try:
            return magic.run(self, line, cell, local_ns)
        except GpuMagicError as error:
            if isinstance(error, RegressionError) or self._came_from_user(error):
                raise
            from gpumagic.system.text import harmless_lines

            raise UsageError(harmless_lines(str(error))) from None

    def _came_from_user(self, error: BaseException) -> bool:
        """Whether the user's own code raised it, inside a cell that the magic ran."""
        step = error.__traceback__
        user_ns = None if self.shell is None else self.shell.user_ns
        while step is not None:
            if step.tb_frame.f_globals is user_ns:
                return True
            step = step.tb_next
        return False

    @_documented("gpu")
    @line_cell_magic
    def gpu(self, line: str, cell: str | None = None) -> Any:
        """Show the GPUs, and choose which of them this kernel sees."""
        __tracebackhide__ = True
        return self._run("gpu", line, cell)

    @_documented("cudatime")
    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def cudatime(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Time a statement or a cell on the GPU, on the wall and on the CPU."""
        __tracebackhide__ = True
        return self._run("cudatime", line, cell, local_ns)

    @_documented("gpumem")
    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    def gpumem(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Show GPU memory, or what a statement or a cell did to it."""
        __tracebackhide__ = True
        return self._run("gpumem", line, cell, local_ns)


def _statement(name: str, line: str) -> str:
    """The statement on the line of a magic, behind its options."""
    magic, parsing = (import_module(f"gpumagic.magics.{n}") for n in (f"{name}.command", "parsing"))
    statement: str = parsing.take_options(magic.parser(), line)[1]
    return statement


class Extension:
    """What one shell has of gpumagic, and how to take it back."""

    def __init__(self, shell: Any) -> None:
        from gpumagic.cells.compile import MagicCode

        self.shell = shell
        self.magics = GpuMagic(shell=shell)
        self.transformer = MagicCode(shell, _statement)
        #: A process that has this and another pid is a fork.
        self.pid = os.getpid()
        #: Called, last first, by `unload`: each undoes one change made after loading.
        self.undo: list[Callable[[], None]] = []
        #: The cells that run, one within the other, with the allocator's counters as they began.
        self.running: list[tuple[Any, Any]] = []
        #: The id of the result that was shown last, and the execution count then.
        self.last_shown: tuple[int, int] | None = None

    def load(self) -> None:
        shell = self.shell
        self.replaced = {
            kind: {name: shell.magics_manager.magics[kind].get(name) for name in _NAMES}
            for kind in ("line", "cell")
        }
        shell.register_magics(self.magics)
        shell.input_transformers_post.append(self.transformer)
        shell.display_formatter.mimebundle_formatter.for_type_by_name(*_RESULT, self._format)
        nvml_check.set_variable()
        # In a process that has replaced another one `restart.loader` takes it from here.
        loader = sys.modules.get("gpumagic.restart.loader")
        if getattr(loader, "state", None) is None and hasattr(shell, "kernel"):
            import_module("gpumagic.magics.gpu.saved_choice").apply(shell)
        init_trace.attach(shell)
        self.undo.append(init_trace.detach)
        for event, hook in (
            ("pre_run_cell", self._before_cell),
            ("post_run_cell", self._after_cell),
        ):
            shell.events.register(event, hook)
            self.undo.append(partial(shell.events.unregister, event, hook))
        if "torch" in sys.modules:
            # All GPUs may have been hidden while torch could fail on it.
            from gpumagic.selection.apply import note_hiding

            note_hiding()

    def resume(self, state: Any) -> None:
        """Go on where the process stopped that this one has replaced, which has left ``state``."""
        import_module("gpumagic.magics.gpu.restarting").resume(self.shell, state)

    def _before_cell(self, info: Any) -> None:
        """Read what a failure of the cell is to be compared with, if torch is there."""
        begun: Any = {}
        if not self.magics.explain_oom:
            begun = None
        elif "torch" in sys.modules:
            begun = import_module("gpumagic.magics.failures").counters()
        self.running.append((info, begun))

    def _after_cell(self, result: Any) -> None:
        """End what the cell has left behind; say what is known of its failure."""
        with suppress(Exception):  # what it does is for the cells to come
            end_abandoned(self.shell)
        if result is None:  # a cell that was cancelled
            self.running.clear()
            return
        begun = self._begun(result.info)
        if result.error_in_exec is not None:
            failures = import_module("gpumagic.magics.failures")
            failures.explain(self.shell, result.error_in_exec, begun)

    def _begun(self, info: Any) -> Any:
        """What was read as a cell began; None for one that is not known."""
        places = [place for place, (known, _) in enumerate(self.running) if known is info]
        if not places:
            return None
        begun = self.running[places[-1]][1]
        del self.running[places[-1] :]
        return begun

    def own_variables(self) -> set[str]:
        """The environment variables that were set by loading."""
        return {nvml_check.VARIABLE} if nvml_check.is_ours() else set()

    def _format(self, result: Any, include: Any = None, exclude: Any = None) -> Any:
        from gpumagic.magics.output import format_result

        return format_result(self.shell, result)

    def unload(self) -> None:
        """Undo everything; what fails is said in a line, and the rest is undone all the same."""
        steps = [*reversed(self.undo), self._unregister, _lift_gate, _leave_torch, _close_nvml]
        steps += [_take_back, nvml_check.withdraw]
        self.undo.clear()
        for step in steps:
            try:
                step()
            except Exception as error:  # torch may be in pieces
                from gpumagic.system import text

                said = text.named(error)
                print(f"gpumagic: not everything could be undone ({said})", file=sys.stderr)

    def _unregister(self) -> None:
        shell = self.shell
        if self.transformer in shell.input_transformers_post:
            shell.input_transformers_post.remove(self.transformer)
        formatter = shell.display_formatter.mimebundle_formatter
        formatter.deferred_printers.pop(_RESULT, None)
        for type_ in [t for t in formatter.type_printers if t.__module__ == _RESULT[0]]:
            formatter.pop(type_)
        for kind, magics in self.replaced.items():
            for name, before in magics.items():
                if before is None:
                    shell.magics_manager.magics[kind].pop(name, None)
                else:
                    shell.magics_manager.magics[kind][name] = before
        shell.magics_manager.registry.pop(GpuMagic.__name__, None)
        if self.magics in shell.configurables:
            shell.configurables.remove(self.magics)


def _lift_gate() -> None:
    if "gpumagic.selection.gate" in sys.modules:
        import_module("gpumagic.selection.gate").lift()


def _leave_torch() -> None:
    if "gpumagic.memory.peak_ledger" in sys.modules:
        import_module("gpumagic.memory.peak_ledger").LEDGER.leave()


def _close_nvml() -> None:
    if "gpumagic.cuda.nvml" in sys.modules:
        import_module("gpumagic.cuda.nvml").close()


def _take_back() -> None:
    """Undo the choices of GPUs and of threads, which only a reload leaves."""
    if not _reloading():
        for room in ("gpumagic.selection.environment", "gpumagic.selection.cpu_threads"):
            if room in sys.modules:
                import_module(room).take_back()


def _reloading() -> bool:
    """Whether IPython unloads only to load again (``%reload_ext``): a choice is to outlast that.

    Only the caller tells; IPython has no word for it.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "reload_extension":
            return True
        frame = frame.f_back
    return False


def load(shell: Any) -> None:
    """Load gpumagic into ``shell``; loading twice is loading once."""
    if getattr(shell, "_gpumagic", None) is None:
        extension = Extension(shell)
        extension.load()
        shell._gpumagic = extension


def unload(shell: Any) -> None:
    """Take gpumagic back from ``shell``."""
    extension = getattr(shell, "_gpumagic", None)
    if extension is not None:
        del shell._gpumagic
        extension.unload()
