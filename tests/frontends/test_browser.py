"""What a user sees in JupyterLab and in Notebook 7: a kernel restarted in the middle of Run All."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.frontends import lab

pytestmark = [
    pytest.mark.skipif(lab.missing() is not None, reason=str(lab.missing())),
    pytest.mark.timeout(300),
]

CELLS = [
    "%load_ext gpumagic\nimport torch, os\n"
    "x = torch.ones(4, device='cuda')\nprint('pid', os.getpid())",
    "%gpu",
    "%gpu off --restart",
    "import torch, os\nprint('after', torch.cuda.is_available(), torch.cuda.device_count())",
    "print('pid', os.getpid())",
    "%gpu",
    *[f"print('queued', {i})" for i in range(14)],
]


def outputs(page: Any) -> list[str]:
    """The text under each code cell."""
    cells = page.locator(".jp-CodeCell")
    return [cells.nth(i).locator(".jp-OutputArea").inner_text() for i in range(cells.count())]


def prompts(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()]


def run_all(page: Any, how: str) -> None:
    """Run every cell and wait until none is left at ``[*]`` or without a number."""
    page.locator(".jp-Notebook").first.wait_for(timeout=60_000)
    # Some versions ask which kernel all the same, and not at once.
    select = page.get_by_role("button", name="Select", exact=True)
    page.add_locator_handler(select, lambda button: button.click())
    page.wait_for_timeout(2000)
    page.locator(".jp-Notebook").first.click()
    # The kernel is there when the notebook says that it is idle.
    page.wait_for_function(
        "() => document.querySelector('.jp-Notebook-ExecutionIndicator[data-status=idle]')",
        timeout=60_000,
    )
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name=how).first.click()
    page.wait_for_function(
        """() => {
            const all = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
            return all.length && all.every(p => /\\[\\d+\\]/.test(p.textContent));
        }""",
        timeout=60_000,
    )


@pytest.mark.parametrize(
    ("application", "theme"),
    [("lab", "JupyterLab Light"), ("lab", "JupyterLab Dark"), ("notebook", "JupyterLab Light")],
    ids=["lab, light", "lab, dark", "Notebook 7"],
)
def test_a_restart_in_the_middle_of_run_all(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path, application: str, theme: str
) -> None:
    environment = lab.environment_for(child_environment(), tmp_path)
    lab.choose_theme(tmp_path, theme)
    lab.write_notebook(tmp_path / "book.ipynb", CELLS)
    lab.PICTURES.mkdir(parents=True, exist_ok=True)
    picture = lab.PICTURES / f"{application}-{theme.split()[-1].lower()}.png"
    where = "lab/tree" if application == "lab" else "notebooks"
    with lab.server(application, tmp_path, environment) as address, lab.page() as page:
        page.goto(f"{address}/{where}/book.ipynb")
        try:
            run_all(page, "Run All Cells")
        finally:
            page.screenshot(path=str(picture))
        dialogs = page.locator(".jp-Dialog").count()
        shown = outputs(page)
        numbers = prompts(page)
    assert dialogs == 0
    assert "cuda:0" in shown[1]
    assert "restarted" in shown[2]
    assert "after False 0" in shown[3]
    assert shown[0].split("pid ")[1].split()[0] == shown[4].split("pid ")[1].split()[0]
    assert "hidden" in shown[5]
    assert [text.strip() for text in shown[6:]] == [f"queued {i}" for i in range(14)]
    assert numbers == [f"[{i}]:" for i in range(1, len(CELLS) + 1)]
