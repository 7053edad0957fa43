"""What a user sees in JupyterLab and in Notebook 7: the panel of a watch, a restart in Run All."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontends import lab
from tests.support.kernels import child_environment
from tests.virtual_gpu import World

pytestmark = pytest.mark.skipif(lab.missing() is not None, reason=str(lab.missing()))

#: A picture of more than 64 KiB, which zmq sends from a thread of its own.
FIGURE = """
%config InlineBackend.figure_format = 'png'
import matplotlib.pyplot as plt, numpy as np
figure = plt.figure(figsize=(4, 3), dpi=200)
_ = plt.imshow(np.random.default_rng(0).random((300, 400)), interpolation='nearest')
"""
CELLS = [
    "%load_ext gpumagic\nimport torch, os, time\nx = torch.ones(4).cuda()\nprint(os.getpid())",
    "%gpu watch --every 0.2",
    "while not os.path.exists('enough'): time.sleep(0.05)",
    "%gpu watch off",
    "%gpu",
    FIGURE,
    "%gpu off --restart --keep x",
    "import torch, os\nprint('after', torch.cuda.is_available(), x.device, x.sum().item(),"
    " 'figure' in globals())",
    "print(os.getpid())",
    FIGURE,
    "%gpu",
    *[f"print('queued', {i})" for i in range(14)],
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """One for all: its start takes seconds."""
    folder = tmp_path_factory.mktemp("server")
    with lab.server(folder, child_environment()) as running:
        yield running


def outputs(page: Any) -> list[str]:
    """The text under each code cell."""
    cells = page.locator(".jp-CodeCell")
    return [cells.nth(i).locator(".jp-OutputArea").inner_text() for i in range(cells.count())]


def prompts(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()]


def start_all(page: Any) -> None:
    """Run every cell, when the kernel is there."""
    # Some versions ask which kernel, though the notebook says so. And what the notebook shows does
    # not tell: before it has a kernel, its indicator is idle too.
    page.wait_for_function(
        """() => {
            document.querySelector('.jp-Dialog .jp-mod-accept')?.click();
            const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
            return session?.session?.kernel && session.kernelDisplayStatus === 'idle';
        }""",
        timeout=300_000,
    )
    page.locator(".jp-Notebook").first.click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells").first.click()


def wait_for_all(page: Any) -> None:
    """Wait until no cell is left at ``[*]`` or without a number."""
    page.wait_for_function(
        """() => {
            const all = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
            return all.length && all.every(p => /\\[\\d+\\]/.test(p.textContent));
        }""",
        timeout=300_000,
    )


def watched(page: Any, world: World) -> tuple[set[str], str]:
    """What the panel has shown while the GPUs' loads changed, and last."""
    panel = page.locator(".jp-CodeCell").nth(1).locator(".gpumagic").first
    panel.wait_for(timeout=300_000)
    seen: set[str] = set()
    for step in range(3000):
        if len(seen) > 6:
            break
        world.set_gpu(0, utilization=step % 100, power=70 + 6 * (step % 100))
        page.wait_for_timeout(100)
        seen.add(panel.inner_text())
    return seen, panel.inner_text()


@pytest.mark.parametrize(
    ("application", "theme"),
    [("lab", "JupyterLab Dark"), ("notebook", "JupyterLab Light")],
    ids=["JupyterLab", "Notebook 7"],
)
def test_a_watch_and_a_restart_in_the_middle_of_run_all(
    server: lab.Server, tmp_path: Path, application: str, theme: str
) -> None:
    lab.choose_theme(server.folder, theme)
    with lab.page() as page:
        page.goto(server.add(tmp_path.name, CELLS, application))
        try:
            start_all(page)
            seen, running = watched(page, World.current(server.environment))
            (server.folder / tmp_path.name / "enough").touch()
            wait_for_all(page)
        finally:
            page.screenshot(path=str(lab.PICTURES / f"{application}.png"))
        dialogs = page.locator(".jp-Dialog").count()
        pid, panel, _, _, table, _, restart, after, same_pid, _, hidden, *queued = outputs(page)
        numbers = prompts(page)
        found = page.locator(".jp-OutputArea img").evaluate_all("all => all.map(i => i.src)")
        pictures = [len(base64.b64decode(each.partition(",")[2])) for each in found]
    assert dialogs == 0
    assert len(seen) > 6
    assert "while the process runs" in running
    assert "ended: '%gpu watch off'" in panel
    assert all(size > 1 << 16 for size in pictures)
    assert len(pictures) == 2
    assert "cuda:0" in table
    assert "restarted" in restart
    assert "Kept: x." in restart
    assert "Imported anew: torch, os, time, plt, np." in restart
    assert "after False cpu 4.0 False" in after
    assert pid.strip() == same_pid.strip() != ""
    assert "hidden" in hidden
    assert [text.strip() for text in queued] == [f"queued {i}" for i in range(14)]
    assert numbers == [f"[{i}]:" for i in range(1, len(CELLS) + 1)]
