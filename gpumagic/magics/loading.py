"""The magics, loaded and unloaded.

Loading reads this file alone: everything else is imported at the next statement. What loading
changes is undone by one `ExitStack`, filled as it goes.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)
from traitlets import Bool, Unicode

if TYPE_CHECKING:
    from gpumagic.magics.extension import Extension

#: The name under which IPython registers our magics and lists their settings.
NAME = "GpuMagic"
_MAGICS = ("gpu", "cudatime", "gpumem")
#: The class that every result is, by name: the module is imported when there is a result.
_RESULT = ("gpumagic.results.base", "Result")
#: See `gpumagic.cuda.nvml_check`.
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def _documented(name: str) -> Callable[[Any], Any]:
    """Give a magic its help (``%gpu?``).

    An interrupt, and a warning that the user has made an error, show no frame of ours behind those
    of the notebook.
    """

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def magic(self: GpuMagic, *arguments: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            try:
                return function(self, *arguments, **named)
            except (KeyboardInterrupt, UserWarning) as error:
                from gpumagic.cells.tracebacks import cut_own_end

                cut_own_end(error, self._is_users)
                raise

        def getdoc() -> str:
            from gpumagic.magics.commands import options_module

            return str(options_module(name).HELP)

        # IPython's inspector asks an object's own getdoc() first.
        magic.getdoc = getdoc  # type: ignore[attr-defined]
        return magic

    return decorate


@magics_class
class GpuMagic(Magics):
    """Defaults of gpumagic's magics, set by ``%config GpuMagic``."""

    quiet = Bool(False, help="Print nothing, as with -q on every call; nor lines after cells.").tag(
        config=True
    )
    min_free = Unicode(
        "", help="What '%gpu auto' asks of a device when --min-free is not given, e.g. '20GiB'."
    ).tag(config=True)
    explain_oom = Bool(True, help="Say below the traceback why GPU memory ran out.").tag(
        config=True
    )
    claim = Bool(
        True, help="Claim the GPUs that are chosen, and leave others' claims for last in 'auto'."
    ).tag(config=True)

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell)
        #: What undoes the loading, the last change first.
        self.undo = ExitStack()
        #: Whether loading has set the variable `_NVML_CHECK`.
        self.sets_check = False
        self._extension: Extension | None = None

    @property
    def extension(self) -> Extension:
        """The state of gpumagic in this shell, made when it is first needed."""
        if self._extension is None:
            from gpumagic.magics import failures
            from gpumagic.magics.extension import Extension

            self._extension = Extension(self.shell, self)
            self._extension.start(failures.hooks(self.shell))
        return self._extension

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
            from gpumagic.magics.commands import command_module

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


def load(shell: Any) -> None:
    """Load gpumagic into ``shell``; loading twice is loading once."""
    if isinstance(shell.magics_manager.registry.get(NAME), GpuMagic):
        return
    magics = GpuMagic(shell)
    if _NVML_CHECK not in os.environ:
        os.environ[_NVML_CHECK] = "1"
        magics.sets_check = True
        magics.undo.callback(_withdraw_check)
    _register_magics(shell, magics)
    _add(magics, shell.input_transformers_post, _transformer(shell))
    matcher = _matcher(shell)
    if matcher is not None:
        _add(magics, shell.Completer.custom_matchers, matcher)
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name(
        *_RESULT,
        lambda result, include=None, exclude=None: magics.extension.format_result(result),
    )
    magics.undo.callback(_remove_format, formatter)
    if "ctypes" in sys.modules:  # as every library that uses CUDA has imported: it may be in use
        magics.extension  # noqa: B018
    else:
        _begin_with_next_statement(shell, magics)


def unload(shell: Any) -> None:
    """Unload gpumagic from ``shell``, unless variables would be lost by it.

    A failure is one line, and the rest is undone nevertheless.
    """
    magics = shell.magics_manager.registry.get(NAME)
    if not isinstance(magics, GpuMagic):
        return
    from gpumagic.errors import DeviceError

    try:
        magics.extension.release()
    except DeviceError as error:
        raise UsageError(f"gpumagic stays loaded: {error}") from None
    try:
        magics.undo.close()
    except Exception as error:  # the user may have unloaded a part of torch
        from gpumagic.system import text

        print(
            f"gpumagic: not everything could be undone ({text.named(error)})",
            file=sys.stderr,
        )


def _register_magics(shell: Any, magics: GpuMagic) -> None:
    """Register the magics, and have those of the same names come back."""
    manager = shell.magics_manager
    before = [
        (kind, name, manager.magics[kind].get(name))
        for kind in ("line", "cell")
        for name in _MAGICS
    ]
    shell.register_magics(magics)

    def undo() -> None:
        for kind, name, function in before:
            if function is None:
                manager.magics[kind].pop(name, None)
            else:
                manager.magics[kind][name] = function
        manager.registry.pop(NAME, None)
        if magics in shell.configurables:
            shell.configurables.remove(magics)

    magics.undo.callback(undo)


def _add(magics: GpuMagic, to: list[Any], function: Any) -> None:
    """Add a function to one of the shell's lists until gpumagic is unloaded."""
    to.append(function)

    def undo() -> None:
        if function in to:  # the user may have emptied the list
            to.remove(function)

    magics.undo.callback(undo)


def _remove_format(formatter: Any) -> None:
    formatter.deferred_printers.pop(_RESULT, None)
    for type_ in [t for t in formatter.type_printers if t.__module__ == _RESULT[0]]:
        formatter.pop(type_)


def _withdraw_check() -> None:
    from gpumagic.cuda import nvml_check

    nvml_check.withdraw()


def _transformer(shell: Any) -> Callable[[list[str]], list[str]]:
    """Return what has the shell await a statement of ours that awaits: see `MagicCode`."""
    made: list[Callable[[list[str]], list[str]]] = []

    def transform(lines: list[str]) -> list[str]:
        if not made:
            if not any("_magic('gpu" in line or "_magic('cudatime'" in line for line in lines):
                return lines
            from gpumagic.cells.magic_code import MagicCode
            from gpumagic.magics.commands import source

            made.append(MagicCode(shell, source))
        return made[0](lines)

    return transform


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


def _begin_with_next_statement(shell: Any, magics: GpuMagic) -> None:
    """Make the extension before the next statement runs, which may be the first to use CUDA."""
    run_code = shell.run_code

    def stop() -> None:
        if shell.__dict__.get("run_code") is begin:
            del shell.run_code

    def begin(code: Any, result: Any = None, **options: Any) -> Any:
        stop()
        try:
            magics.extension  # noqa: B018
        except Exception as error:  # an error of gpumagic must not stop the user's statement
            print(f"gpumagic: {type(error).__name__}: {error}", file=sys.stderr)
            return run_code(code, result, **options)
        return shell.run_code(code, result, **options)

    shell.run_code = begin
    magics.undo.callback(stop)
