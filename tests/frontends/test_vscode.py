"""Results in VS Code's frame: its colours, and its style sheet for tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.frontends import lab
from tests.support.kernels import Kernel

pytestmark = pytest.mark.skipif(lab.missing() is not None, reason=str(lab.missing()))

#: Of VS Code's default themes: the class of the frame's body, and its variables.
THEMES: Mapping[str, Mapping[str, str]] = {
    "vscode-light": {
        "foreground": "#3b3b3b",
        "editor-foreground": "#3b3b3b",
        "editor-background": "#ffffff",
        "notebook-outputContainerBackgroundColor": "#f8f8f8",
    },
    "vscode-dark": {
        "foreground": "#cccccc",
        "editor-foreground": "#cccccc",
        "editor-background": "#1f1f1f",
        "notebook-outputContainerBackgroundColor": "#252526",
    },
}
#: What VS Code's frame says of an output, and of the tables in it.
SHEET = """
html, body { background-color: transparent; color: var(--vscode-editor-foreground);
  font: 13px sans-serif; margin: 0; }
html { background-color: var(--vscode-editor-background); }
.output { background-color: var(--vscode-notebook-outputContainerBackgroundColor);
  padding: 8px; overflow-x: auto; }
table, thead, tr, th, td, tbody { border: none; border-spacing: 0; border-collapse: collapse; }
table, th, tr { vertical-align: middle; text-align: right; }
thead { font-weight: bold; background-color: rgba(130, 130, 130, 0.16); }
th, td { padding: 4px 8px; }
tr:nth-child(even) { background-color: rgba(130, 130, 130, 0.08); }
"""
#: The text in an output whose contrast to what lies behind it is lowest, with that contrast.
CONTRAST = """() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const over = (color, alpha) => {
        canvas.globalAlpha = alpha;
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const luminance = rgb => {
        const [r, g, b] = rgb.map(c => c / 255).map(
            c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const seen = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode, box = text.parentElement;
        if (!text.data.trim() || !box.checkVisibility()) continue;
        const around = [];
        for (let each = box; each; each = each.parentElement) {
            around.unshift(getComputedStyle(each));
        }
        let ground, opacity = 1;
        for (const style of around) {
            ground = over(style.backgroundColor, 1);
            opacity *= Number(style.opacity);
        }
        const [a, b] = [over(getComputedStyle(box).color, opacity), ground].map(luminance);
        seen.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), text.data.trim()]);
    }
    return seen.sort((one, other) => one[0] - other[0]);
}"""
LINES = """%%cudatime --lines
x = torch.ones(2000, 2000, device="cuda")  # a comment
for _ in range(3):
    y = x @ x
print("sum", y.sum().item() > 0)
"""


def test_all_text_is_legible(kernel: Callable[..., Kernel]) -> None:
    """The device table, a callout, and the lines of a cell, in a light and in a dark theme."""
    notebook = kernel()
    table = notebook.run("%gpu").html
    notebook.run("import torch; torch.ones(1, device='cuda')")
    lines = notebook.run(LINES).html
    callout = notebook.run("%gpu off").html
    assert all('class="gpumagic"' in each for each in (table, lines, callout))
    outputs = "".join(f'<div class="output">{each}</div>' for each in (table, lines, callout))
    lab.PICTURES.mkdir(parents=True, exist_ok=True)
    with lab.page(
        width=900, height=600
    ) as page:  # not before: its event loop would be the kernel's
        for theme, colors in THEMES.items():
            variables = "".join(f"--vscode-{name}:{color};" for name, color in colors.items())
            page.set_content(
                f'<html style="{variables}"><style>{SHEET}</style>'
                f'<body class="{theme}">{outputs}</body></html>'
            )
            page.screenshot(path=lab.PICTURES / f"{theme}.png", full_page=True)
            seen = page.evaluate(CONTRAST)
            words = " ".join(text for _, text in seen)
            assert "H100" in words
            assert "Too late" in words
            assert "a comment" in words
            assert seen[0][0] >= 4.5, (theme, seen[:5])
