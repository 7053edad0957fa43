"""The three magics as IPython has them: their help, and their defaults.

Imported when the extension loads: what a magic does is imported when it is first used.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Callable
from traceback import clear_frames, walk_stack, walk_tb
from types import FrameType
from typing import Any

from IPython.core import magic as ipython
from IPython.core.error import UsageError
from traitlets import Bool, TraitError, Unicode, validate

from gpumagic.magics.shell_state import ShellState


def _for_a_notebook(function: Callable[..., Any]) -> Callable[..., Any]:
    """Complete a magic's help, and turn gpumagic's own errors into one line.

    IPython keeps the last exception with its frames. So no error of ours keeps a frame that has the
    user's values, and an interrupt, and a warning that the user has made an error, show none of
    ours behind those of the notebook.
    """

    @functools.wraps(function)
    def magic(magics: GpuMagic, *arguments: object, **scope: object) -> Any:
        __tracebackhide__ = True
        from gpumagic.cells import compile, tracebacks
        from gpumagic.errors import GpuMagicError, RegressionError

        def is_users(frame: FrameType) -> bool:
            shell = magics.state.shell
            of_cell = compile.cell_of(shell, frame.f_code.co_filename) is not None
            return of_cell or frame.f_globals is shell.user_ns

        try:
            return function(magics, *arguments, **scope)
        except (Exception, KeyboardInterrupt) as error:
            of_cell = any(is_users(frame) for frame, _ in walk_tb(error.__traceback__))
            if of_cell or isinstance(error, (KeyboardInterrupt, SyntaxError, UserWarning)):
                tracebacks.take_out_own(error, is_users)
                raise
            if not isinstance(error, GpuMagicError):
                clear_frames(error.__traceback__)
                raise
            refused: Exception = error
        # Not above, where the error would be kept as the context of what is raised.
        if not isinstance(refused, RegressionError):
            from gpumagic.system.text import harmless_lines

            refused = UsageError(harmless_lines(str(refused)))
        raise refused.with_traceback(None)

    def getdoc() -> str:
        from gpumagic.magics.commands import page

        return page(function.__name__, str(function.__doc__))

    magic.getdoc = getdoc  # type: ignore[attr-defined]  # IPython's ``?`` asks it for the help
    return magic


@ipython.magics_class
class GpuMagic(ipython.Magics):
    """Defaults of gpumagic's magics, set by ``%config GpuMagic``."""

    shell: Any  # by IPython's declaration it may be None
    quiet = Bool(
        False, help="Print nothing, as if every call had -q; no lines after cells either."
    ).tag(config=True)
    min_free = Unicode(
        "", help="The free memory that '%gpu auto' asks for without --min-free, e.g. '20GiB'."
    ).tag(config=True)
    explain_oom = Bool(True, help="Say below the traceback why GPU memory ran out.").tag(
        config=True
    )
    claim = Bool(
        True,
        help="Claim the chosen GPUs; 'auto' takes one that others claim only if no other fits.",
    ).tag(config=True)

    @validate("min_free")
    def _check_min_free(self, proposal: Any) -> str:
        from argparse import ArgumentTypeError

        from gpumagic.magics.argument_types import size

        value: str = proposal["value"]
        try:
            if value:
                size(value)
        except ArgumentTypeError as error:
            raise TraitError(f"GpuMagic.min_free: {error}") from None
        return value

    def __init__(self, shell: Any) -> None:
        super().__init__(shell=shell)
        self.state = ShellState(shell, self)

    def _run(
        self,
        name: str,
        command: Callable[..., Any],
        line: str,
        cell: str | None,
        local_ns: dict[str, Any] | None,
    ) -> Any:
        """Read a magic's line, and run its command; or show the help."""
        from gpumagic.magics.commands import grammar_of

        if local_ns is None:  # an alias of IPython's passes none
            frames = (frame for frame, _ in walk_stack(None))
            namespace = self.shell.user_ns
            local_ns = next((f.f_locals for f in frames if f.f_globals is namespace), namespace)
        variables = ChainMap(local_ns, self.shell.user_ns)
        parsed = grammar_of(name).read(line, variables, cell=cell is not None, quiet=self.quiet)
        if parsed.verb == "help":
            return self.shell.run_line_magic("pinfo", f"%{name}")
        return command(self, parsed, cell, local_ns)

    @ipython.no_var_expand
    @ipython.needs_local_scope
    @ipython.line_cell_magic
    @_for_a_notebook
    def gpu(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> Any:
        """Show the GPUs, and choose which of them this process sees: verified.

          %gpu                        the GPUs; %gpu -p: with the processes on them
          %gpu auto                   see the one with the most free memory, unclaimed
          %gpu 0,2                    see GPUs 0 and 2, as nvidia-smi numbers them
          %gpu off                    hide all GPUs; %gpu on: show all
          %gpu off --restart          the same when it is too late; variables stay

        %gpu [SPEC | VERB] [options]           %%gpu SPEC: for one cell, and back

          %gpu 1-3                    a range
          %gpu GPU-8f1d               a UUID, or a unique beginning of one; MIG-… too
          %gpu auto 2 --min-free 20GiB --wait 600
          %gpu reset                  the GPUs that the process was started with

        Examples
        --------
          %gpu off --restart --keep model optimizer
          selection = %gpu off -o -q
          %gpu off --cluster -t 0:4
        """
        from gpumagic.magics.gpu.gpu_command import run

        return self._run("gpu", run, line, cell, local_ns)

    @ipython.no_var_expand
    @ipython.needs_local_scope
    @ipython.line_cell_magic
    @_for_a_notebook
    def cudatime(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> Any:
        """Time code on the GPU, on the wall and on the CPU.

          %%cudatime                  run a cell once, like %%time
          %cudatime y = model(x)      the same for a statement; y is assigned
          %%cudatime --repeat         run it many times, like %%timeit
          %%cudatime --lines -f step  the time of each line, and the lines that wait
          %%cudatime --repeat --name before     name it, for %cudatime compare

        %cudatime [options] STATEMENT          %%cudatime [options]

        GPU time lasts until the last work of the code has ended, on any device and
        stream. A time with ≤ is an upper bound: the GPU may have been idle in between;
        others are exact within 5 %. Wall time ends when the GPU's work has, too.


        Examples
        --------
          timing = %cudatime -o -q -n 100 model(x)
          %cudatime -- -x @ y         code that begins with a minus sign follows --
          %cudatime -r 7 --name batch-{n} step(n)     {n} as in IPython, also $n
        """
        from gpumagic.magics.cudatime.cudatime_command import run

        return self._run("cudatime", run, line, cell, local_ns)

    @ipython.no_var_expand
    @ipython.needs_local_scope
    @ipython.line_cell_magic
    @_for_a_notebook
    def gpumem(
        self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> Any:
        """Show GPU memory now, or its change by a statement or a cell.

          %gpumem                     what torch, the rest of this process, others hold
          %gpumem vars                the variables that hold GPU memory
          %gpumem free model x        delete these, and give their memory back
          %%gpumem                    the change by a cell, and its peak
          %%gpumem --fit batch=1:4096     the largest batch that fits

        %gpumem [VERB | options STATEMENT]     %%gpumem [options]

        The figures are those of torch's allocator, exact, and reading them changes
        nothing. The report tells the change since the last one.

          %gpumem y = model(x)        the change by a statement; also when it fails

        Examples
        --------
          %gpumem -v forward y = model(x)
          %gpumem -- log              code that begins as a verb does follows --
          %%gpumem --lines -f model.forward
        """
        from gpumagic.magics.gpumem.gpumem_command import run

        return self._run("gpumem", run, line, cell, local_ns)
