"""Run the gallery's cells: in a kernel as a notebook, and in IPython in a terminal."""

from __future__ import annotations

import io
import math
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pyte
from jupyter_core.utils import ensure_async
from nbclient import NotebookClient
from nbclient.client import CellExecutionComplete

from tests.support.kernels import ROOT
from tests.support.other_user import UID
from tests.support.terminal import Terminal
from tests.tools.demo.runner import Machine, execute
from tests.tools.gallery.items import GIB, ITEMS, LOADS, PROCESSES, Cell, machine
from tests.tools.gallery.screen import Screen, overwritten
from tests.virtual_gpu import World

COLUMNS = 80
_KEY = "gallery"


@contextmanager
def environment(folder: Path, commit: str | None) -> Iterator[dict[str, str]]:
    """Return the environment of a process on the gallery's machine, with others' processes on it.

    With ``commit`` it imports the package of that commit, from a copy in ``folder``.
    """
    here = [str(ROOT)]
    if commit is not None:
        archive = ["git", "archive", commit, "gpumagic"]
        found = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(found)) as tree:
            tree.extractall(folder / "package", **_data_filter())
        here.insert(0, str(folder / "package"))
    variables = {**machine().environment, "PYTHONPATH": os.pathsep.join(here)}
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "GPUMAGIC_CLAIMS"):
        variables[name] = str(folder / name.lower())
        Path(variables[name]).mkdir()
    with _processes(folder, World.current(variables)):
        yield variables


def _data_filter() -> dict[str, Any]:
    return {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@contextmanager
def _processes(folder: Path, world: World) -> Iterator[None]:
    """Run a process for each that is on the machine's GPUs: a shell that waits for its input."""
    folder.chmod(0o755)
    for script in {each[2] for each in PROCESSES}:
        (folder / script).write_text("read line\n")
    started = []
    for gpu, gib, script, mine in PROCESSES:
        other = {} if mine or os.geteuid() != 0 else {"user": UID, "group": UID, "extra_groups": []}
        process = subprocess.Popen(
            ["python", script],
            executable="/bin/sh",
            cwd=folder,
            stdin=subprocess.PIPE,
            **other,  # type: ignore[call-overload]
        )
        started.append(process)
        world.add_process(gpu, process.pid, gib * GIB)
    try:
        yield
    finally:
        for process in started:
            process.communicate()


class _Client(NotebookClient):
    """nbclient as a front end with a user: outputs that change, interrupts, pages of help."""

    def __init__(self, *arguments: Any, world: World, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_cell_execute, self.on_cell_executed = self._begin, self._end
        self._world, self._over = world, threading.Event()
        self._threads: list[threading.Thread] = []

    async def _async_poll_output_msg(self, parent_msg_id: str, cell: Any, cell_index: int) -> None:
        """Take updates of any cell's output; nbclient drops those of earlier cells."""
        while True:
            message = await ensure_async(self.kc.iopub_channel.get_msg(timeout=None))
            if message["parent_header"].get("msg_id") == parent_msg_id:
                try:
                    self.process_message(message, cell, cell_index)
                except CellExecutionComplete:
                    return
            elif message["msg_type"] == "update_display_data":
                self._update_display_id(message["content"]["transient"]["display_id"], message)
            pattern = cell.metadata.get(_KEY, {}).get("during")
            if pattern and "early" not in cell.metadata and re.search(pattern, _text(cell.outputs)):
                cell.metadata["early"] = deepcopy(cell.outputs)

    def _begin(self, cell: Any, cell_index: int) -> None:
        about = cell.metadata.get(_KEY, {})
        for each in self.nb.cells[:cell_index]:
            before = each.metadata.get(_KEY, {})
            if before.get("live") and before["item"] != about["item"]:
                each.metadata.setdefault("early", deepcopy(each.outputs))
        self._over.clear()
        if about.get("interrupted"):
            self._start(self._interrupt, about["interrupted"])
        if about.get("busy"):
            self._start(self._vary_loads)

    def _end(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        # A front end shows a page of help below the cell.
        for page in execute_reply["content"].get("payload", []):
            if page["source"] == "page":
                cell.outputs.append(nbformat.v4.new_output("display_data", page["data"]))

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _interrupt(self, seconds: float) -> None:
        if not self._over.wait(seconds):
            os.kill(self.km.provisioner.pid, signal.SIGINT)

    def _vary_loads(self) -> None:
        """Vary the load of every GPU in use, this kernel's included, until the cell has ended."""
        started = time.monotonic()
        while not self._over.wait(0.5):
            phase = (time.monotonic() - started) / 3
            for index, (load, temperature, power) in enumerate(LOADS):
                change = 30 * math.sin(phase + index) + 60 * (index == 0)
                changed = max(0, min(100, round(load + change))) if load or index == 0 else load
                change = (changed - load) / 100
                self._world.set_gpu(
                    index,
                    utilization=changed,
                    temperature=round(temperature + 20 * change),
                    power=power + 250 * change,
                )
        for index, (load, temperature, power) in enumerate(LOADS):
            self._world.set_gpu(index, utilization=load, temperature=temperature, power=power)


def _text(outputs: list[Any]) -> str:
    return "".join(
        output.get("text", "") or str(output.get("data", {}).get("text/plain", ""))
        for output in outputs
    )


def as_notebook(variables: Mapping[str, str], folder: Path, earlier: bool) -> nbformat.NotebookNode:
    """Run the session as a notebook and return what is to be seen of it, each cell's item named."""
    cells = [
        nbformat.v4.new_code_cell(
            source,
            metadata={_KEY: {**vars(cell), "item": item.name}, "tags": ["raises-exception"]},
        )
        for item in ITEMS
        for cell in item.cells
        if (source := _source(cell, earlier))
    ]
    done = execute(
        nbformat.v4.new_notebook(cells=cells),
        Machine("", variables, virtual=False),
        folder=folder,
        client_class=partial(_Client, world=World.current(variables)),  # type: ignore[arg-type]
    )
    shown = []
    for cell in done.cells:
        if cell.metadata[_KEY]["hidden"]:
            continue
        early = cell.metadata.pop("early", None)
        if early is not None:
            shown.append(nbformat.from_dict({**cell, "outputs": early, "id": f"{cell.id}-early"}))
        if early is None or cell.metadata[_KEY]["during"]:
            shown.append(cell)
    for cell in shown:
        cell.outputs = _joined(cell.outputs)
    text = nbformat.writes(nbformat.v4.new_notebook(cells=shown, metadata=done.metadata))
    return nbformat.reads(_neutral(text, folder), as_version=4)


def _joined(outputs: list[Any]) -> list[Any]:
    """Return outputs with each stream as JupyterLab shows it: in one piece, and overwritten."""
    joined: list[Any] = []
    for output in deepcopy(outputs):
        if (
            joined
            and output.output_type == "stream"
            and output.get("name") == joined[-1].get("name")
        ):
            joined[-1].text += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            output.text = "\n".join(overwritten(line) for line in output.text.split("\n"))
    return joined


def _neutral(text: str, folder: Path) -> str:
    """Return a text without the paths of the machine on which the session runs."""
    for path, name in ((folder / "package", "~"), (folder, "~"), (ROOT, "~"), (sys.prefix, "~")):
        text = text.replace(str(path), name)
    return text


def item_of(cell: nbformat.NotebookNode) -> str:
    """Return the name of the item that a cell of the notebook belongs to."""
    name: str = cell.metadata[_KEY]["item"]
    return name


def _source(cell: Cell, earlier: bool) -> str:
    if earlier and cell.new:
        return ""
    return cell.earlier if earlier and cell.earlier else cell.source


def in_terminal(
    variables: Mapping[str, str], folder: Path, earlier: bool
) -> dict[str, list[list[tuple[str, str]]]]:
    """Run the session in IPython in a terminal and return its screens by item: lines of spans.

    A span is a text and its CSS.
    """
    terminal = Terminal(
        {**variables, "COLORTERM": "truecolor", "PAGER": "cat"},
        folder,
        columns=COLUMNS,
        kind="xterm-256color",
    )
    screens = {}
    try:
        for item in ITEMS:
            screen = Screen(COLUMNS, 400)
            stream = pyte.Stream(screen)
            for cell in item.cells:
                source = _source(cell, earlier) if cell.terminal == "" else cell.terminal
                if not source:
                    continue
                if cell.hidden and "\n" in source:  # typed, each statement is a cell
                    (folder / "cell").write_text(source)
                    source = "_ = get_ipython().run_cell(open('cell').read())"
                shown = _neutral(_typed(terminal, source, cell.interrupted), folder)
                if not cell.hidden:
                    prompt = "\x1b[92mIn:\x1b[0m " + source.replace("\n", "\r\n    ")
                    stream.feed(f"{prompt}\r\n{shown}\r\n")
            if lines := screen.spans():
                screens[item.name] = lines
    finally:
        terminal.close()
    return screens


def _typed(terminal: Terminal, source: str, seconds: float) -> str:
    terminal.begin(source)
    timer = threading.Timer(seconds, terminal.process.sendintr) if seconds else None
    if timer is not None:
        timer.start()
    shown = terminal.finish()
    if timer is not None:
        timer.cancel()
        timer.join()
    return shown
