"""``%cudatime on``, ``off`` and ``log``: a line after every cell that used the GPU or took long."""

from __future__ import annotations

import re
import time
from typing import Any

import ipykernel
import pytest

from gpumagic.magics.magic_state import state_of
from gpumagic.render.units import seconds
from gpumagic.results.timing.timing_log import CellTiming, TimingLog
from tests.virtual_gpu import SLEEP_CYCLES_PER_SECOND

#: In a kernel, by the real clock: longer than a busy machine takes until it looks whether the GPU
#: is still at work.
SLEEP = f"torch.cuda._sleep({int(0.5 * SLEEP_CYCLES_PER_SECOND)})"


@pytest.fixture
def timed(gpu_work: Any, ip: Any, run_cell: Any) -> Any:
    """A shell with the automatic mode on, and contexts on cuda:0 and cuda:1."""
    ip.user_ns.update(gpu_work=gpu_work, torch=gpu_work.torch)
    run_cell("%cudatime on -q")
    return run_cell


def last(run_cell: Any) -> CellTiming:
    log = run_cell("%cudatime log -o -q").value
    assert isinstance(log, TimingLog)
    return log[-1]


def test_a_cell_that_used_the_gpu(timed: Any) -> None:
    ran = timed("gpu_work.sleep(0.3)")
    cell = last(timed)
    assert ran.text == str(cell)
    assert ran.text.startswith("GPU ")
    assert " ms · wall " in ran.text
    assert "\n" not in ran.text
    assert cell.gpu is not None
    # The work is queued some time after the start, at most when the host is done.
    assert 0.98 * 0.3 <= cell.gpu <= 1.02 * 0.3 + cell.host
    assert cell.gpu <= cell.wall
    assert cell.host < 0.2, "the cell's own end is not that of its GPU work"
    assert not cell.gpu_at_most
    assert list(cell.per_device) == [0]
    assert cell.source == "gpu_work.sleep(0.3)"


def test_a_cell_that_fails_ends_before_its_traceback_is_drawn(
    timed: Any, ip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, waits = ip.InteractiveTB.structured_traceback, []

    def slowly(*args: Any, **kwargs: Any) -> Any:
        waits.append(time.sleep(0.5))
        return draw(*args, **kwargs)

    monkeypatch.setattr(ip.InteractiveTB, "structured_traceback", slowly)
    shown = timed("gpu_work.sleep(0.1)\nraise ValueError('a')", raising=False).text
    cell = last(timed)
    assert waits
    assert not cell.gpu_at_most
    assert f"GPU {seconds(cell.gpu)} · wall " in shown
    assert 0.098 <= cell.gpu <= cell.wall <= 0.2
    # The traceback of a cell in the cell is not its end.
    ip.user_ns["ip"] = ip
    timed("ip.run_cell('1 / 0')\ngpu_work.sleep(0.1)")
    assert last(timed).wall > 0.6


def test_a_cell_without_gpu_work_says_nothing(timed: Any) -> None:
    assert timed("x = 1").text == ""
    assert not last(timed).used_gpu
    assert last(timed).gpu_at_most, "it is not said that there was none"
    assert last(timed).per_device == {}


def test_a_cell_that_may_have_waited_for_the_gpu_has_its_line(timed: Any) -> None:
    """From 0.1 s of wall time on."""
    wait = "torch.cuda.synchronize()"
    shown = timed(f"gpu_work.sleep(0.15)\n{wait}").text
    assert re.fullmatch(r"wall 150 ms · CPU .* · no GPU work seen \(≤ 150 ms\)", shown)
    assert timed(f"gpu_work.sleep(0.05)\n{wait}").text == ""
    failed = timed(f"gpu_work.sleep(0.15)\n{wait}\n1/0", raising=False)
    assert "no GPU work seen (≤ 150 ms)" in failed.text
    timed("%cudatime on -q --above 0.01s")
    assert "no GPU work seen" in timed(f"gpu_work.sleep(0.05)\n{wait}").text


def test_cuda_initialised_inside_has_no_false_time(kernel: Any) -> None:
    """From a fresh process: no torch, CUDA made inside, then everything as it should be."""
    k = kernel()
    k.run("%cudatime on --above 0s")
    k.run("import sys; assert 'torch' not in sys.modules")
    assert k.run("x = 1").text.startswith("wall ")
    reply = k.run(f"import torch\ntorch.cuda.init()\n{SLEEP}")
    assert reply.text.startswith("GPU ≤ ")
    reply = k.run(SLEEP)
    assert reply.text.startswith("GPU ")
    k.run("%cudatime log -q -v log")
    first, second = k.value("[cell.to_dict() for cell in log[-2:]]")
    assert first["gpu"] >= 0.49
    assert 0.49 <= second["gpu"] <= second["wall"]
    assert second["cell"] == reply.execution_count
    assert "wall" in k.run("import asyncio\nawait asyncio.sleep(0.01)").text
    reply = k.run(f"{SLEEP}\ntorch.cuda.synchronize()\n1 / 0", raising=False)
    assert reply.error["ename"] == "ZeroDivisionError"
    assert "no GPU work seen (≤ " in reply.text


#: Printed once, when our wait for the GPU has begun.
SAY_WAITS = (
    "from gpumagic.timing import event_timer\nreal = event_timer.pause\n"
    "said = []\n"
    "def pause(begun):\n    said or said.append(print('waits', flush=True))\n    real(begun)\n"
    "event_timer.pause = pause"
)


def test_an_interrupt_of_our_wait_is_the_users(kernel: Any) -> None:
    """The cell is interrupted, and Run All stops; the next one does not wait for the same."""
    k = kernel()
    k.run(f"%cudatime on\nimport torch\ntorch.cuda.init()\n{SAY_WAITS}")
    message = k.submit(f"torch.cuda._sleep({600 * SLEEP_CYCLES_PER_SECOND})")
    k.until(message, "waits")
    k.interrupt()
    reply = k.wait(message, timeout=250)  # less than there is to wait for
    assert reply.status == "error"
    assert reply.error["ename"] == "KeyboardInterrupt"
    assert "interrupted while waiting for the GPU" in reply.error["evalue"]
    assert "interrupted while waiting for the GPU" in reply.text
    k.run("%cudatime off -q\nevent_timer.pause = real")
    assert k.value(
        "[cell.failed for cell in get_ipython().run_line_magic('cudatime', 'log -o -q')]"
    ) == [True]
    assert k.value("1 + 1") == 2


def test_a_cell_does_not_wait_for_the_work_of_earlier_ones(kernel: Any) -> None:
    """Nor is that work its own: started before `on`, or left over by an interrupted cell."""
    k = kernel()
    k.run(f"import torch\ntorch.cuda.init()\ntorch.cuda._sleep({600 * SLEEP_CYCLES_PER_SECOND})")
    k.run("%cudatime on -q --above 0s")
    reply = k.run("x = 1")  # it would take ten minutes
    assert reply.text.startswith("wall ")
    assert "no GPU time: earlier work was still under way on cuda:0 when the code" in reply.text


def test_cells_of_a_subshell_and_of_the_main_one_have_their_own_lines(kernel: Any) -> None:
    if ipykernel.version_info < (7,):
        pytest.skip("this ipykernel has no subshells")
    k = kernel()
    k.run("%cudatime on -q --above 0s\n%gpumem on -q\nimport threading, torch")
    k.run("go_on = threading.Event(); torch.cuda.init()")
    beside = k.subshell()
    code = "print('waits', flush=True); go_on.wait(); y = torch.ones(2**18, device='cuda')"
    main = k.submit(code)
    k.until(main, "waits")
    reply = k.wait(beside("x = torch.ones(2**20, device='cuda'); x.sum().item()"))
    assert "wall " in reply.text
    assert "GPU memory: cuda:0 +4.00 MiB" in reply.text
    beside("go_on.set()")
    reply = k.wait(main)
    assert "wall " in reply.text
    assert "GPU memory: cuda:0 +5.00 MiB" in reply.text
    rows = k.value("[c.source for c in get_ipython().run_line_magic('cudatime', 'log -o -q')]")
    assert {"x = torch", "print('wa", "go_on.set"} <= {row[:9] for row in rows}


def test_off_and_the_log(timed: Any, ip: Any) -> None:
    timed("gpu_work.sleep(0.1)")
    timed("x = 1")
    timed("1 / 0", raising=False)
    for own in ("-v t log", "-q -v t log", "-v=t compare -q"):
        timed(f"%cudatime {own}", raising=False)
    timed("def log(x): return x")
    timed("%cudatime -q log(3)")  # a call of the user's
    text = timed("%cudatime log").text
    assert text.startswith("5 cells: wall ")
    assert "; 1 with a sign of GPU work: GPU " in text
    assert "x = 1" in text
    assert "none seen (≤ " in text
    timed("%cudatime off")
    assert timed("gpu_work.sleep(0.1)").text == ""
    log = timed("%cudatime log -o -q").value
    assert [cell.failed for cell in log] == [False, False, True, False, False]
    assert not log.watching
    state = state_of(ip)
    assert state.cell_timing is not None
    assert not state.cell_timing.watching


def test_an_empty_log(run_cell: Any) -> None:
    shown = "No cell has been timed yet: '%cudatime on' starts the log"
    assert run_cell("%cudatime log").text == shown
    run_cell("%cudatime on -q")
    assert run_cell("%cudatime log").text == "No cell has been timed since '%cudatime on'"
    assert run_cell("%cudatime off").stdout.startswith("No more lines after cells; ")


def test_timed_cells_show_no_second_line(timed: Any) -> None:
    assert len(timed("%%cudatime\ngpu_work.sleep(0.1)").displays) == 1
    assert len(timed("%cudatime torch.ones(9, device='cuda');").displays) == 1
    assert last(timed).used_gpu
    timed("def step():\n    %cudatime -q gpu_work.sleep(0.1)\n    gpu_work.sleep(0.1)")
    assert timed("step()").text.startswith("GPU "), "more than the call in the function"


def test_what_a_timed_cell_has_shown_is_in_the_log(timed: Any) -> None:
    """It has waited for the GPU, so that at the cell's end there is no sign of that work."""
    for options in ("", "-n 1 -r 2 -w 0"):
        timed(f"%%cudatime {options}\ngpu_work.sleep(0.1)")
        cell = last(timed)
        assert (cell.used_gpu, list(cell.per_device)) == (True, [0])
        assert 0.09 <= cell.gpu_at_least <= 0.101
        assert cell.gpu >= 0.1
        timed("x = 1")
        assert not last(timed).used_gpu
    timed("%%cudatime\nx = 1")
    assert not last(timed).used_gpu
    assert "5 cells: wall " in (text := timed("%cudatime log").text)
    assert "; 2 with a sign of GPU work: GPU " in text
