"""What a user sees in JupyterLab and in Notebook 7: a kernel restarted in the middle of Run All."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.frontends import lab

pytestmark = pytest.mark.skipif(lab.missing() is not None, reason=str(lab.missing()))

#: A picture of more than 64 KiB, which zmq sends from a thread of its own.
FIGURE = """
%config InlineBackend.figure_format = 'png'
import matplotlib.pyplot as plt, numpy as np
figure = plt.figure(figsize=(4, 3), dpi=200)
_ = plt.imshow(np.random.default_rng(0).random((300, 400)), interpolation='nearest')
"""
CELLS = [
    "%load_ext gpumagic\nimport torch, os\nx = torch.ones(4).cuda()\nprint('pid', os.getpid())",
    "%gpu",
    FIGURE,
    "%gpu off --restart --keep x",
    "import torch, os\nprint('after', torch.cuda.is_available(), x.device, x.sum().item(),"
    " 'figure' in globals())",
    "print('pid', os.getpid())",
    FIGURE,
    "%gpu",
    *[f"print('queued', {i})" for i in range(14)],
]


def outputs(page: Any) -> list[str]:
    """The text under each code cell."""
    cells = page.locator(".jp-CodeCell")
    return [cells.nth(i).locator(".jp-OutputArea").inner_text() for i in range(cells.count())]


def prompts(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()]


def start_all(page: Any) -> None:
    """Run every cell, when the kernel is there."""
    page.locator(".jp-Notebook").first.wait_for(timeout=300_000)
    # Some versions ask which kernel all the same, and not at once.
    select = page.get_by_role("button", name="Select", exact=True)
    page.add_locator_handler(select, lambda button: button.click())
    page.wait_for_timeout(2000)
    page.locator(".jp-Notebook").first.click()
    # Not what the notebook shows: before it has a kernel, its indicator is idle too.
    page.wait_for_function(
        """() => {
            const session = window.jupyterapp?.shell.currentWidget?.sessionContext;
            return session?.session?.kernel && session.kernelDisplayStatus === 'idle';
        }""",
        timeout=300_000,
    )
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


@pytest.mark.parametrize(
    ("application", "theme"),
    [("lab", "JupyterLab Dark"), ("notebook", "JupyterLab Light")],
    ids=["JupyterLab", "Notebook 7"],
)
def test_a_restart_in_the_middle_of_run_all(
    server: lab.Server, tmp_path: Path, application: str, theme: str
) -> None:
    lab.choose_theme(server.folder, theme)
    with lab.page() as page:
        page.goto(server.add(tmp_path.name, CELLS, application))
        try:
            start_all(page)
            wait_for_all(page)
        finally:
            page.screenshot(path=str(lab.PICTURES / f"{application}.png"))
        dialogs = page.locator(".jp-Dialog").count()
        shown = outputs(page)
        numbers = prompts(page)
        found = page.locator(".jp-OutputArea img").evaluate_all("all => all.map(i => i.src)")
        pictures = [len(base64.b64decode(each.partition(",")[2])) for each in found]
    assert dialogs == 0
    assert all(size > 1 << 16 for size in pictures)
    assert len(pictures) == 2
    assert "cuda:0" in shown[1]
    assert "restarted" in shown[3]
    assert "Kept: torch, os, plt, np, x." in shown[3]
    assert "after False cpu 4.0 False" in shown[4]
    assert shown[0].split("pid ")[1].split()[0] == shown[5].split("pid ")[1].split()[0]
    assert "hidden" in shown[7]
    assert [text.strip() for text in shown[8:]] == [f"queued {i}" for i in range(14)]
    assert numbers == [f"[{i}]:" for i in range(1, len(CELLS) + 1)]
