"""A kernel as Google Colab starts it: ``python -m tests.support.colab_launcher -f FILE``.

A module that is not ipykernel's runs ipykernel's application, with a kernel and a shell of its own.
What they change is what Colab's change; none of this is Colab's code.
"""

from __future__ import annotations

from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.history import HistoryManager
from IPython.core.oinspect import Inspector
from traitlets import Type


class History(HistoryManager):
    """It keeps more of each cell than IPython's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.cells: list[str] = []
        super().__init__(*arguments, **options)

    def store_inputs(self, line_num: int, source: str, source_raw: str | None = None) -> None:
        super().store_inputs(line_num, source, source_raw)
        self.cells.append(source if source_raw is None else source_raw)


class Inspect(Inspector):
    """What ``name?`` asks."""


class Shell(ZMQInteractiveShell):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.inspector.__class__ = Inspect

    def init_history(self) -> None:
        self.history_manager = History(shell=self, parent=self)
        self.configurables.append(self.history_manager)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        content = {"traceback": stb, "ename": etype.__name__, "evalue": str(evalue), "colab": True}
        hook = self.displayhook
        hook.session.send(hook.pub_socket, "error", content, hook.parent_header, ident=hook.topic)

    def run_cell_magic(self, magic_name: str, line: str, cell: str) -> Any:
        return super().run_cell_magic(magic_name, line, cell or (" " if line else cell))


class Kernel(IPythonKernel):
    shell_class = Type(Shell)


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=Kernel)
