"""What README promises, in one notebook: if this fails, nothing else matters."""

from __future__ import annotations

from typing import Any

MODEL = """
import torch
model = torch.nn.Linear(1000, 1000).cuda()
x = torch.ones(8, 1000).cuda()
"""
LINES = """\
%%cudatime --lines -v rows
for _ in range(3):
    y = model(x)
value = y.sum().item()
"""
DELTA = """\
%%gpumem -q -v delta
z = torch.empty(1 << 20, device="cuda", dtype=torch.uint8)
"""


def test_one_notebook(kernel: Any) -> None:
    notebook = kernel(load=False)
    assert notebook.run("%load_ext gpumagic").shown == ""
    loaded = "sorted({'torch', 'pynvml', 'rich', 'pandas'} & set(__import__('sys').modules))"
    assert notebook.value(loaded) == []
    notebook.run("table = %gpu -q -o")
    assert notebook.value("(len(table), table[0].ordinal)") == (4, 0)

    assert "applied" in notebook.run("chosen = %gpu 1,2 -o").shown
    notebook.run(MODEL)
    assert notebook.value("(torch.cuda.device_count(), chosen.status)") == (2, "applied")

    assert "GPU" in notebook.run("%%cudatime -v one\ny = model(x)").shown
    assert notebook.value("one.gpu.median > 0 and one.wall.median > 0")
    notebook.run("%%cudatime -r 3 -n 2 -q -v many\ny = model(x)")
    assert notebook.value("(many.repeat, many.loops)") == (3, 2)
    assert "y.sum().item()" in notebook.run(LINES).shown
    assert notebook.value("[line.hits for line in rows.lines if line.line == 3]") == [3]

    notebook.run(DELTA)
    assert notebook.value("(delta.devices[0].allocated, delta.devices[0].peak)") == (2**20, 2**20)
    assert "model" in notebook.run("%gpumem vars").shown
    notebook.run("%gpumem free z -q")
    assert notebook.value("'z' in globals()") is False

    assert "--restart" in notebook.run("late = %gpu off -o").shown
    assert notebook.value("late.status") == "too-late"
    notebook.run("%gpu off --restart --keep x")
    assert notebook.value("(x.device.type, tuple(x.shape))") == ("cpu", (8, 1000))
    assert notebook.value("__import__('torch').cuda.is_available()") is False
    assert "CUDA_VISIBLE_DEVICES" in notebook.run("%gpu doctor").shown
