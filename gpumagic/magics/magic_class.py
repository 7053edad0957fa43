"""The three magics as IPython calls them: their help, what reads and runs a line, and their errors.

What a magic does is imported when the magic is first used.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from importlib import import_module
from traceback import clear_frames, walk_stack, walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any

from IPython.core import magic as ipython
from IPython.core.error import UsageError

from gpumagic.magics.magic_state import MagicState

if TYPE_CHECKING:
    from gpumagic.magics.parsing import Grammar

MAGICS = ("gpu", "cudatime", "gpumem")


def grammar_of(magic: str) -> Grammar:
    """Return the forms of a magic's line; this imports nothing that measures, restarts or draws."""
    grammar: Grammar = import_module(f"gpumagic.magics.{magic}.{magic}_options").grammar()
    return grammar


def _magic(described: Callable[[Any], None]) -> Any:
    """Return the magic of the same name, for a line and for a cell; the docstring begins its help.

    An error of gpumagic becomes one line. It keeps no frame: IPython keeps the last exception, and
    frames keep the user's values. An exception of the user's code shows no frame of gpumagic; nor
    does an interrupt, or a warning that the user has turned into an error.
    """
    name = described.__name__

    def magic(
        self: GpuMagic, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True
        try:
            return self._run(name, line, cell, local_ns)
        except (Exception, KeyboardInterrupt) as error:
            refused = self._refused(error, is_line=cell is None)
            if refused is None:
                raise
        # Not above, where the error would be kept as the context of what is raised.
        raise refused.with_traceback(None)

    # No `functools.wraps`: IPython 7 would call it with the described one's arguments.
    magic.__name__, magic.__doc__ = name, described.__doc__
    decorated: Any = ipython.no_var_expand(
        ipython.needs_local_scope(ipython.line_cell_magic(magic))
    )
    # IPython's ``?`` asks it for the help.
    text = str(described.__doc__)
    decorated.getdoc = lambda: grammar_of(name).help_page(text)
    return decorated


@ipython.magics_class
class GpuMagic(MagicState):
    """Defaults of gpumagic's magics, set by ``%config GpuMagic``."""

    def _run(self, name: str, line: str, cell: str | None, local_ns: dict[str, Any] | None) -> Any:
        """Read a magic's line, and run its command; or show the help."""
        # An alias of IPython's passes no ``local_ns``.
        variables = ChainMap(local_ns or {}, self.shell.user_ns)
        grammar = grammar_of(name)
        parsed = grammar.read(line, variables, cell=cell is not None, quiet=self.quiet)
        if parsed.verb == "help":
            return self.shell.run_line_magic("pinfo", f"%{name}")
        command = import_module(f"gpumagic.magics.{name}.{name}_command")
        return command.run(self, parsed, cell, local_ns)

    def _refused(self, error: BaseException, *, is_line: bool) -> Exception | None:
        """Return the error of one line that is raised for one of gpumagic's; None for another.

        The other one is prepared to be raised as it is.
        """
        from gpumagic.cells import compile, tracebacks
        from gpumagic.errors import GpuMagicError, RegressionError

        def is_notebooks(frame: FrameType) -> bool:
            of_cell = compile.cell_of(self.shell, frame.f_code.co_filename) is not None
            return of_cell or frame.f_globals is self.shell.user_ns

        of_cell = any(is_notebooks(frame) for frame, _ in walk_tb(error.__traceback__))
        if isinstance(error, SyntaxError) and is_line and not of_cell:
            # The statement's first line is that of the cell, or the function, which has it.
            lines = (line for frame, line in walk_stack(None) if is_notebooks(frame))
            error.lineno = (error.lineno or 1) + next(lines, 1) - 1
        if of_cell or isinstance(error, (KeyboardInterrupt, SyntaxError, UserWarning)):
            tracebacks.take_out_own(error, is_notebooks)
        elif isinstance(error, RegressionError):
            return error
        elif isinstance(error, GpuMagicError):
            from gpumagic.system.text import harmless_lines

            return UsageError(harmless_lines(str(error)))
        else:  # a mistake of ours
            clear_frames(error.__traceback__)
        return None

    @_magic
    def gpu(self) -> None:
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

    @_magic
    def cudatime(self) -> None:
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

    @_magic
    def gpumem(self) -> None:
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
