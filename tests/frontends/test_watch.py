"""The panel of ``%gpu watch`` in JupyterLab: updated while a cell runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.frontends import lab
from tests.frontends.test_browser import start_all, wait_for_all
from tests.virtual_gpu.world import World

pytestmark = pytest.mark.skipif(lab.missing() is not None, reason=str(lab.missing()))

GIB = 2**30
CELLS = [
    "%load_ext gpumagic\nimport os, time, torch",
    "%gpu watch",
    "blocks = []\n"
    "while not os.path.exists('enough'):\n"
    "    blocks.append(torch.empty(2 << 30, dtype=torch.uint8, device='cuda:0'))\n"
    "    del blocks[:-20]\n"
    "    time.sleep(0.5)",
    "%gpu plot",
    "%gpu watch off",
]


def test_the_panel_changes_while_a_cell_runs(server: lab.Server, tmp_path: Path) -> None:
    world = World.current(server.environment)
    world.add_process(1, 42424242, 40 * GIB, "someone")
    lab.choose_theme(server.folder, "JupyterLab Light")
    with lab.page(1280, 1300) as page:
        page.goto(server.add(tmp_path.name, CELLS))
        start_all(page)
        panel = page.locator(".jp-CodeCell").nth(1).locator(".gpumagic")
        panel.wait_for(timeout=300_000)
        seen = set()
        for step in range(600):
            if len(seen) > 6:
                break
            for index in range(3):
                load = 50 + 45 * math.sin(step / 4 + index)
                world.set_gpu(index, utilization=int(load), power=int(70 + 6 * load))
            page.wait_for_timeout(500)
            seen.add(panel.inner_text())
        page.screenshot(path=str(lab.PICTURES / "watch.png"))
        running = panel.inner_text()
        (server.folder / tmp_path.name / "enough").touch()
        wait_for_all(page)
        page.screenshot(path=str(lab.PICTURES / "watch-ended.png"))
        ended = panel.inner_text()
    assert len(seen) > 6
    assert "live while the kernel runs" in running
    assert "ended: '%gpu watch off'" in ended
