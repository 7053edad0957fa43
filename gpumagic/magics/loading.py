"""The magics, loaded and unloaded: each imports what it needs when it is called."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import line_cell_magic, magics_class, needs_local_scope, no_var_expand

from gpumagic.cells.cancellation import end_abandoned
from gpumagic.cells.hooks import CellHook
from gpumagic.errors import GpuMagicWarning
from gpumagic.magics.commands import command_module, grammar_of, options_module
from gpumagic.magics.extension import Extension, Settings, find

if TYPE_CHECKING:
    from gpumagic.cells.compile import MagicSource


def _documented(name: str) -> Callable[[Any], Any]:
    """Give a magic its help, generated from its parser when it is asked for (``%gpu?``).

    An interrupt, and a warning that the user has made an error, show no frame of ours behind those
    of the notebook.
    """

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def magic(self: GpuMagic, *arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            try:
                return function(self, *arguments, **named)
            except (KeyboardInterrupt, GpuMagicWarning) as error:
                from gpumagic.cells.tracebacks import cut_own_end

                cut_own_end(error, self._is_users)
                raise

        # IPython's inspector asks an object's own getdoc() first.
        magic.getdoc = lambda: options_module(name).HELP  # type: ignore[attr-defined]
        return magic

    return decorate


@magics_class
class GpuMagic(Settings):
    """Defaults of gpumagic's magics."""

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

    def _run(self, name: str, line: str, cell: str | None, local_ns: Any = None) -> Any:
        """Call a magic's module; turn gpumagic's own errors into one line."""
        __tracebackhide__ = True
        from gpumagic.errors import GpuMagicError, RegressionError

        try:
            command = command_module(name)
        except KeyboardInterrupt:  # a traceback through our imports would not help the user
            raise UsageError("interrupted; nothing was changed") from None
        try:
            return command.run(self, line, cell, local_ns)
        except GpuMagicError as error:
            if isinstance(error, RegressionError) or self._came_from_user(error):
                raise
            from gpumagic.system.text import harmless_lines

            raise UsageError(harmless_lines(str(error))) from None

    def _came_from_user(self, error: BaseException) -> bool:
        """Return whether the user's own code raised it, inside a cell that the magic ran."""
        from gpumagic.cells.tracebacks import steps

        return any(self._is_users(frame) for frame, _ in steps(error.__traceback__))

    def _is_users(self, frame: FrameType) -> bool:
        """Return whether it is a frame of the notebook's code."""
        return self.shell is not None and frame.f_globals is self.shell.user_ns

    def resume(self, state: Any) -> None:
        """Resume after a restart in place, from the ``state`` of the process that was replaced.

        Called by `gpumagic.restart.loader`.
        """
        from gpumagic.magics.gpu import restarting

        restarting.resume(self.shell, state)


def load(shell: Any) -> None:
    """Load gpumagic into ``shell``; loading twice is loading once."""
    if find(shell) is not None:
        return
    from gpumagic.cells.compile import MagicCode

    extension = GpuMagic(shell).extension
    extension.load(MagicCode(shell, _source), _matcher(shell))
    # In a process that has replaced another one `restart.loader` does the rest.
    loader = sys.modules.get("gpumagic.restart.loader")
    if getattr(loader, "state", None) is None and hasattr(shell, "kernel"):
        from gpumagic.magics.gpu import saved_choice

        saved_choice.apply(shell, claim=extension.magics.claim)
    extension.magics.observe(lambda _: _publish(extension), "publish_notebook")
    extension.hooks.add(_cleanup_hook(shell))
    extension.hooks.add(_explanation_hook(extension))
    if "torch" in sys.modules:
        # All GPUs may have been hidden when torch tried to initialise CUDA.
        from gpumagic.selection.apply import note_hiding

        note_hiding()


def _matcher(shell: Any) -> Any:
    """Return a matcher for IPython's completer; None where it has none of its kind (before 8.6)."""
    try:
        from IPython.core.completer import context_matcher
    except ImportError:
        return None

    @context_matcher(identifier="gpumagic")  # type: ignore[untyped-decorator]
    def match(context: Any) -> Any:
        nothing = {"completions": [], "suppress": False}
        if "%" not in context.text_until_cursor:
            return nothing
        try:
            from gpumagic.magics import completion

            return completion.match(shell, context)
        except Exception:  # IPython's own completions must go on
            return nothing

    return match


def unload(shell: Any) -> None:
    """Unload gpumagic from ``shell``, unless variables would be lost by it."""
    extension = find(shell)
    if extension is None:
        return
    from gpumagic.errors import DeviceError

    try:
        extension.unload()
    except DeviceError as error:
        raise UsageError(f"gpumagic stays loaded: {error}") from None


def _publish(extension: Extension) -> None:
    """Begin or stop publishing the notebook's name with its claim, if there is one."""
    if "gpumagic.selection.claims" in sys.modules:
        from gpumagic.magics.gpu import publishing

        publishing.update(extension)


def _source(name: str, line: str, cell: str | None) -> MagicSource | None:
    """Return the code that a magic runs in this process; None if it runs none."""
    from gpumagic.cells.compile import MagicSource

    if name == "gpu":
        return None if cell is None else MagicSource(cell)
    parsed = grammar_of(name).read(line, cell=cell is not None)
    if parsed.verb or parsed.options.cluster or (cell is None and not parsed.code):
        return None
    source, above = (parsed.code, "") if cell is None else (cell, parsed.code)
    if name == "gpumem":
        return MagicSource(source)
    from gpumagic.magics.cudatime.options import REPEATING
    from gpumagic.magics.cudatime.repeat_options import setup_code

    if REPEATING.isdisjoint(parsed.given):
        return MagicSource(source)
    return MagicSource(source, setup_code(parsed.options, above), is_repeated=True)


def _cleanup_hook(shell: Any) -> CellHook[None]:
    """Return the hook that ends the coroutines of an interrupted cell."""
    return CellHook(
        after=lambda _, __: end_abandoned(shell),
        cancelled=lambda: end_abandoned(shell),
    )


def _explanation_hook(extension: Extension) -> CellHook[Any]:
    """Return the hook that explains a cell's failure below its traceback."""

    def before(_: Any, __: Any) -> Any:
        """Read the allocator's counters, to compare them after a failure, if torch is imported."""
        if not extension.magics.explain_oom:
            return None
        if "torch" not in sys.modules:
            return {}
        from gpumagic.magics import failures

        return failures.counters()

    def after(begun: Any, result: Any) -> None:
        if result.error_in_exec is not None:
            from gpumagic.magics import failures

            failures.explain(extension.shell, result.error_in_exec, begun)

    def failed(error: Exception) -> None:
        from gpumagic.system import text

        print(f"gpumagic: errors are not explained any more ({text.named(error)})", file=sys.stderr)

    return CellHook(before=before, after=after, failed=failed)
