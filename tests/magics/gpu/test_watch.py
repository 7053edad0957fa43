"""``%gpu watch``: a panel that a thread updates while cells run, or recorded in a terminal."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError

from gpumagic.cuda import nvml
from gpumagic.errors import DeviceError
from gpumagic.magics.gpu import watch
from gpumagic.magics.gpu.watch_history import WatchHistory
from gpumagic.magics.gpu.watch_thread import Watch
from gpumagic.results.base import as_html
from tests.support.kernels import PATIENCE, Kernel, end_client
from tests.support.waiting import until
from tests.virtual_gpu.world import World


class Panel:
    """What a panel has shown, oldest first, and how to wait for what it will."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        #: The thread that has shown each.
        self.threads: list[int] = []

    def __call__(self, panel: Any) -> None:
        self.threads.append(threading.get_ident())
        self.shown.append({"text/plain": str(panel), "text/html": as_html(panel)})

    @property
    def text(self) -> str:
        return self.shown[-1]["text/plain"]

    def until(self, says: str) -> None:
        until(lambda: says in self.text, lambda: self.text)


@pytest.fixture
def begin(ip: Any, virtual_gpu: Any) -> Iterator[Callable[..., tuple[Watch, Panel]]]:
    """``begin(every=0.01, …)`` begins to watch, and returns the watch and its panel."""
    current = watch.of(ip)

    def make(every: float = 0.01, **options: Any) -> tuple[Watch, Panel]:
        panel = Panel()
        current.begin(panel, every, **options)
        return current, panel

    yield make
    current.end("the test is over")


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "gpumagic watch"]


def test_the_panel_follows_the_devices(begin: Callable[..., Any], virtual_gpu: Any) -> None:
    """By NVML alone: it calls neither CUDA nor torch."""
    current, panel = begin()
    calls, looked, count = virtual_gpu.calls("cu*"), len(current.samples), len(panel.shown)
    until(lambda: len(current.samples) > looked + 3)
    assert len(panel.shown) == count, "nothing is sent while nothing changes"
    assert panel.threads[0] == threading.get_ident()  # in the cell that has asked for it
    virtual_gpu.set_gpu(2, utilization=63, power=250)
    panel.until("63 %")
    panel.until("250 / 700 W")
    assert virtual_gpu.calls("cu*") == calls
    assert "<table" in panel.shown[-1]["text/html"]
    assert "● live where HTML is shown" in panel.text
    current.end("enough")
    assert "■ ended: enough" in panel.text
    assert "63 %" in panel.text
    until(lambda: not threads())
    count = len(panel.shown)
    current.end("again")
    assert len(panel.shown) == count


def test_cells_are_recorded_as_spans(
    begin: Callable[..., Any], run_cell: Callable[..., Any], ip: Any
) -> None:
    current, _ = begin()
    run_cell("first = 1\nsecond = 2")
    run_cell("get_ipython().run_cell('inner = 1')")
    run_cell("1/0", raising=False)
    history = current.history()
    assert [cell.failed for cell in history.cells] == [False, False, True]
    numbers = [cell.number for cell in history.cells]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert all(cell.end is not None and cell.start <= cell.end for cell in history.cells)
    assert history.running
    ip.events.trigger("pre_run_cell", SimpleNamespace(raw_cell="await forever()"))
    ip.events.trigger("post_run_cell", None)
    cancelled = current.history().cells[-1]
    assert (cancelled.number, cancelled.failed) == (None, True)
    assert cancelled.end is not None
    current.end("enough")
    run_cell("x = 1")
    assert len(current.history().cells) == 4
    assert not current.history().running


def test_a_failing_nvml_ends_neither_the_panel_nor_the_cell(
    begin: Callable[..., Any], virtual_gpu: Any, run_cell: Callable[..., Any]
) -> None:
    current, panel = begin()
    virtual_gpu.fault("nvml*", 999)
    looked = len(current.samples)
    until(lambda: len(current.samples) > looked + 3)
    ran = run_cell("x = 1")
    assert ran.stdout + ran.stderr == ""
    assert current.running
    assert "ended" not in panel.text


def test_an_error_of_the_thread_ends_it_and_no_more_cells_are_counted(
    begin: Callable[..., Any], run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    current, panel = begin()
    run_cell("x = 1")

    def fail(*_: object, **__: object) -> None:
        raise DeviceError("the driver was updated")

    with monkeypatch.context() as patch:
        patch.setattr(nvml.Session, "read", fail)
        until(lambda: not current.running)
    assert "■ ended: the driver was updated" in panel.text
    run_cell("x = 2")
    run_cell("x = 3")
    history = current.history()
    assert (len(history.cells), history.running) == (1, False)
    with pytest.raises(UsageError, match="the panel has ended: the driver was updated"):
        run_cell("%gpu watch off")
    begin()
    run_cell("x = 4")
    assert len(current.history().cells) == 1


def test_without_a_gpu_it_is_one_line(
    run_cell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pynvml.nvmlDeviceGetCount", lambda: 0)
    for line, says in (
        ("%gpu watch", "This machine has no GPU that CUDA can use: NVML lists none."),
        ("%gpu watch off", "no panel is running"),
        ("%gpu plot", "nothing to draw"),
    ):
        with pytest.raises(UsageError, match=says):
            run_cell(line)
    assert not threads()


def test_a_second_panel_takes_over_until_gpumagic_is_unloaded(
    begin: Callable[..., Any], ip: Any
) -> None:
    current, first = begin()
    until(lambda: len(current.samples) > 3)
    samples = tuple(current.samples)
    _, second = begin()
    assert "GPU" in second.text, "it is there at once"
    assert "■ ended: moved to where '%gpu watch' was called again" in first.text
    until(lambda: len(threads()) == 1)
    assert current.history().samples[:3] == samples[:3]
    ip.extension_manager.unload_extension("gpumagic")
    assert "■ ended: gpumagic was unloaded" in second.text
    until(lambda: not threads())
    ip.extension_manager.load_extension("gpumagic")


# --- the magic ---------------------------------------------------------------------------------


def test_in_a_terminal_the_gpus_are_recorded(
    run_cell: Callable[..., Any], ip: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "watch gpumagic table" in run_cell("%gpu watch --every 100ms").stdout
    until(lambda: len(watch.of(ip).samples) > 1)
    assert "samples in" in run_cell("%gpu watch off").text
    until(lambda: not threads())
    ran = run_cell(f"%gpu plot '{tmp_path}/all.svg' -o")
    assert isinstance(ran.value, WatchHistory)
    assert len(ran.value.samples) > 1
    assert "written to" in ran.stdout
    assert (tmp_path / "all.svg").read_text().startswith("<?xml")
    (picture,) = run_cell("%gpu plot").displays
    assert picture["image/png"]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # for the data it is not needed
    assert run_cell("%gpu plot -q -v seen").text == ""
    assert run_cell("len(seen.to_pandas()) % 4").value == 0


def test_in_a_kernel(kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    """The panel is updated while a cell runs, and belongs to the cell that began it."""
    k = kernel()
    begun = k.submit("%gpu watch --every 0.1")
    reply = k.wait(begun)
    assert "● live where HTML is shown" in reply.html
    assert "live where HTML is shown" in reply.text, "a client that shows text does not update it"
    busy = k.submit("import os, time\nwhile not os.path.exists('enough'): time.sleep(0.01)")
    world, updates = World.current(k.environment), list[dict[str, Any]]()
    deadline = time.monotonic() + PATIENCE
    while len(updates) < 3:
        assert time.monotonic() < deadline
        world.set_gpu(1, utilization=10 + len(updates))
        try:
            message = k.client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["msg_type"] == "update_display_data":
            assert message["parent_header"]["msg_id"] == begun
            updates.append(message["content"])
    (tmp_path / "enough").touch()
    k.client.get_shell_msg(timeout=PATIENCE)
    assert len({each["transient"]["display_id"] for each in updates}) == 1
    assert all("<table" in each["data"]["text/html"] for each in updates)
    # Captured output would never be seen; the panel that is there goes on.
    captured = k.run("%%capture found\n%gpu watch", raising=False)
    assert "captured" in k.value("found.stderr") + captured.shown
    mistake = k.run("%gpu watch --every 10ms", raising=False)
    assert "--every: at least 0.1 s" in mistake.stderr
    assert k.run("%gpu watch -o").value is not None
    assert "samples in" in k.run("%gpu watch off").text
    # A recording without a panel; a restart in place ends it, and does not take it for the user's.
    k.run("import torch; x = torch.ones(1, device='cuda')")
    k.run("%gpu off --soft")
    assert "gated" in k.run("%gpu watch").text
    assert "gated" in k.run("%gpu watch off").text
    k.run("%gpu on")
    assert k.run("%gpu watch -q").outputs == []
    assert "restarted" in k.run("%gpu off --restart").text
    assert "no panel is running" in k.run("%gpu watch off", raising=False).stderr
    assert busy


def test_a_front_end_that_vanishes_leaves_it_to_the_next_one(kernel: Callable[..., Kernel]) -> None:
    k = kernel()
    k.run("%gpu watch --every 0.1")
    end_client(k.client)
    world = World.current(k.environment)
    before = world.calls("nvml*")
    until(lambda: world.calls("nvml*") > before + 20)  # it goes on to look, for `plot`
    k.client = k.manager.blocking_client()
    k.client.start_channels()
    k.client.wait_for_ready(timeout=PATIENCE)
    assert "samples in" in k.run("%gpu watch off").text
