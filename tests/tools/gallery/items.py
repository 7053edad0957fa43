"""What is in the gallery: cells of one session, in their order, each below a heading.

The session has eight GPUs that are shared with others; see `machine`, `PROCESSES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.tools.demo.runner import Machine
from tests.virtual_gpu import GPU, ExternalProcess, Scenario, environment

GIB = 2**30
#: Of each GPU: utilisation in percent, °C, watts.
LOADS = (
    *((0, 34, 62), (3, 36, 71), (97, 71, 341), (100, 78, 388)),
    *((48, 55, 187), (0, 33, 60), (12, 48, 144), (0, 34, 61)),
)


@dataclass(frozen=True)
class Cell:
    """A cell of the session."""

    source: str
    #: Run, and not in the picture.
    hidden: bool = False
    #: Not in the session of an earlier version, which does not have it.
    new: bool = False
    #: What an earlier version is given instead.
    earlier: str = ""
    #: Interrupted when it has run so many seconds.
    interrupted: float = 0.0
    #: Shown as it is when its output first contains this pattern, and once more at its end.
    during: str = ""
    #: Shown as it is when the last cell of its item has run; its output changes later.
    live: bool = False
    #: The other users' load changes meanwhile.
    busy: bool = False
    #: In the session of a terminal: as it is, not at all (None), or this instead.
    terminal: str | None = ""


@dataclass(frozen=True)
class Item:
    """A heading of the page, and the cells below it."""

    name: str
    title: str
    cells: tuple[Cell, ...]

    @property
    def is_new(self) -> bool:
        """Whether an earlier version has nothing of it."""
        return all(cell.new for cell in self.cells if not cell.hidden)


_TRAIN = """\
started = time.monotonic()
while time.monotonic() - started < {seconds}:
    blocks.append(torch.empty(3 << 30, dtype=torch.uint8, device="cuda:0"))
    del blocks[:-18]
    train_step(4096)
    time.sleep(0.5)
"""
_MODEL = """\
import os, time, warnings
import torch
from torch import nn
torch.manual_seed(0)
def build():
    global model, optimizer, x
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(16384, 16384, device="cuda")
def train_step(batch=4096):
    inputs = torch.randn(batch, 1024, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss
blocks = []
"""
_WATCH = "import matplotlib\n%matplotlib inline"
_SICK = """\
from tests.virtual_gpu import World
for index in (6, 7):
    World.current().lose(index)
os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
"""
_WELL = """\
for index in (6, 7):
    World.current().find(index)
del World, os.environ["CUDA_LAUNCH_BLOCKING"]
"""

ITEMS = (
    Item(
        "devices",
        "`%gpu` on a machine with many GPUs",
        (
            Cell("%load_ext gpumagic", hidden=True),
            Cell(_MODEL, hidden=True),
            Cell("%gpu"),
        ),
    ),
    Item("processes", "Processes", (Cell("%gpu -p"),)),
    Item("help", "`%gpu?`", (Cell("%gpu?"),)),
    Item(
        "wait",
        "An interrupted wait",
        (Cell("%gpu auto 8 --idle --wait 600", interrupted=1.5),),
    ),
    Item(
        "doctor",
        "`%gpu doctor`",
        (
            Cell(_SICK, hidden=True),
            Cell("%gpu doctor"),
            Cell(_WELL, hidden=True),
        ),
    ),
    Item(
        "watch",
        "`%gpu watch`: a live panel",
        (
            Cell(_WATCH, hidden=True, terminal=None),
            Cell("build(); train_step()", hidden=True),
            Cell("%gpu watch", earlier="%gpu watch --for 4", live=True, interrupted=5.0),
            Cell(_TRAIN.format(seconds=28), hidden=True, busy=True, new=True, terminal=None),
            Cell("time.sleep(6)", hidden=True, busy=True, new=True, terminal=None),
            Cell(_TRAIN.format(seconds=26), hidden=True, busy=True, new=True, terminal=None),
        ),
    ),
    Item(
        "plot",
        "`%gpu plot`",
        (
            Cell("%gpu plot", new=True, terminal=None),
            Cell("%gpu watch off", hidden=True, new=True, terminal=None),
        ),
    ),
    Item(
        "single-run",
        "A single run",
        (
            Cell("blocks.clear(); torch.cuda.empty_cache(); y = x @ x", hidden=True),
            Cell("%cudatime y = x @ x"),
            Cell("%%cudatime\nfor _ in range(20):\n    loss = train_step(32768)"),
            Cell("%cudatime --rows y = x @ x", new=True),
        ),
    ),
    Item(
        "progress",
        "Progress, while it runs and afterwards",
        (Cell("%cudatime -n 20 -r 60 train_step(32768)", during=r"[4-7]\d ?%"),),
    ),
    Item(
        "comparison",
        "Comparison",
        (
            Cell("%cudatime -q --repeat --name 'batch 32768' train_step(32768)", hidden=True),
            Cell("%cudatime -q --repeat --name 'batch 32000' train_step(32000)", hidden=True),
            Cell("%cudatime -q --repeat --name 'batch 22000' train_step(22000)", hidden=True),
            Cell("%cudatime -q --repeat --name 'batch 48000' train_step(48000)", hidden=True),
            Cell("%cudatime --compare"),
        ),
    ),
    Item(
        "time-lines",
        "`%%cudatime --lines`",
        (
            Cell(
                "%%cudatime --lines\n"
                "losses = []\n"
                "for step in range(8):\n"
                "    loss = train_step(16384)\n"
                "    losses.append(loss.item())\n"
                "    if loss.isnan():\n"
                "        break\n"
                "total = sum(losses)",
                new=True,
            ),
        ),
    ),
    Item(
        "memory-lines",
        "`%%gpumem --lines`",
        (
            Cell(
                "%%gpumem --lines\n"
                "kept = []\n"
                "for step in range(3):\n"
                "    inputs = torch.randn(8192, 1024, device='cuda')\n"
                "    kept.append(model(inputs))\n"
                "    del inputs\n"
                "loss = sum(each.square().mean() for each in kept)\n"
                "loss.backward()"
            ),
        ),
    ),
    Item(
        "memory",
        "`%gpumem`",
        (
            Cell(
                "pinned = torch.empty(4, dtype=torch.uint8).pin_memory()\n"
                "third = torch.empty(900 << 20, dtype=torch.uint8, device='cuda:3')\n"
                "fourth = torch.empty(30 << 30, dtype=torch.uint8, device='cuda:4')\n"
                "del fourth",
                hidden=True,
            ),
            Cell("%gpumem"),
        ),
    ),
    Item(
        "memory-plot",
        "`%gpumem plot`",
        (
            Cell("%gpumem on -q", earlier="%gpumem on", hidden=True, terminal=None),
            Cell("%config GpuMagic.quiet = True", hidden=True, terminal=None),
            *(Cell(f"train_step({2048 * k})", hidden=True, terminal=None) for k in (2, 4, 8)),
            Cell("batches = torch.randn(1 << 29, device='cuda:0')", hidden=True, terminal=None),
            Cell("total = 1 + 1", hidden=True, terminal=None),
            Cell("train_step(1 << 18); None", hidden=True, terminal=None),
            Cell("del batches", hidden=True, terminal=None),
            Cell("words = 'a b c'.split()", hidden=True, terminal=None),
            Cell("torch.empty(200 << 30, device='cuda')", hidden=True, terminal=None),
            Cell(
                "fifth = torch.empty(8 << 30, dtype=torch.uint8, device='cuda:4')",
                hidden=True,
                terminal=None,
            ),
            Cell("%config GpuMagic.quiet = False", hidden=True, terminal=None),
            Cell("%gpumem plot", terminal=None),
            Cell("%gpumem off", hidden=True, terminal=None),
        ),
    ),
    Item(
        "out-of-memory",
        "Out of memory",
        (
            Cell(
                "cache = {step: torch.empty(2 << 30, dtype=torch.uint8, device='cuda:0')"
                " for step in range(20)}\n"
                "features = torch.empty(14 << 30, dtype=torch.uint8, device='cuda:0')",
                hidden=True,
            ),
            Cell("batch = torch.empty(40 << 30, dtype=torch.uint8, device='cuda:0')"),
            Cell("batch = torch.empty(100 << 30, dtype=torch.uint8, device='cuda:0')"),
        ),
    ),
    Item(
        "too-late",
        "Too late",
        (
            Cell("%gpu off"),
            Cell('warnings.filterwarnings("ignore")\n%gpu off', terminal=None),
        ),
    ),
    Item("soft", "After `--soft`", (Cell("%gpu off --soft"), Cell("%gpu"))),
)


#: Processes of others, real ones that do nothing: GPU, GiB, script, whether the user's own.
PROCESSES = (
    (1, 4, "evaluate.py", True),
    *((2, 15, "worker.py", False),) * 4,
    (3, 77, "serve.py", False),
    (4, 22, "train.py", False),
)
#: A process of another container: GPU, GiB, and a pid above Linux's maximum.
_UNKNOWN = ExternalProcess(6, 2**22 + 6, 41 * GIB)


def machine() -> Machine:
    """Return a machine with eight virtual GPUs, on which the processes above do not run yet."""
    gpus = [
        GPU(
            "NVIDIA A100-SXM4-80GB",
            compute_capability=(8, 0),
            utilization=utilization,
            temperature=temperature,
            power=power,
            power_limit=400,
        )
        for utilization, temperature, power in LOADS
    ]
    variables = environment(Scenario(devices=gpus, processes=[_UNKNOWN]))
    return Machine(f"a virtual machine with {len(gpus)} GPUs", variables, virtual=True)
