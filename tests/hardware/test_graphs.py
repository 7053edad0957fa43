"""What a CUDA graph's capture in another thread survives of ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hardware.record import Figure
from tests.support.kernels import Kernel

pytestmark = [pytest.mark.hardware, pytest.mark.usefixtures("torch")]

CAPTURE = """
def capture():
    try:
        with torch.cuda.graph(graph):
            x.add_(1)
            under_way.set()
            release.wait(30)
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}")
    finally:
        under_way.set()
graph, failures = torch.cuda.CUDAGraph(), []
under_way, release = threading.Event(), threading.Event()
thread = threading.Thread(target=capture)
thread.start()
assert under_way.wait(30)
"""


#: What a cell does before the capture, and one during it; "nothing" is the test of the test.
MEANWHILE = {
    "nothing": ("", "pass"),
    "cudatime()": ("", "import gpumagic\nwith gpumagic.cudatime():\n    pass"),
    "%cudatime on": ("%cudatime on", "pass"),
}


@pytest.mark.parametrize("name", MEANWHILE)
def test_a_capture_elsewhere_survives(
    kernel: Callable[..., Kernel], figure: Figure, name: str
) -> None:
    first, cell = MEANWHILE[name]
    fresh = kernel()
    fresh.run("import threading, torch; x = torch.ones(8, device='cuda').add_(1)")
    fresh.run(first)
    fresh.run("x.add_(1)")
    fresh.run(CAPTURE)
    shown = fresh.run(cell, raising=False).shown
    fresh.run("release.set(); thread.join(30)")
    failures = fresh.value("failures")
    figure(f"a capture elsewhere, {name} meanwhile: its failures, our words", (failures, shown))
    assert failures == []
    fresh.run("graph.replay(); torch.cuda.synchronize()")
