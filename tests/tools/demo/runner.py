"""Execute the demo notebooks, on this machine's GPU or on a virtual one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import forks
from tests.support.device import ROOT
from tests.support.kernels import manage, python_environment

if TYPE_CHECKING:  # it takes a second of CPU time to import
    import nbformat

SOURCES = ROOT / "demo_notebooks"
RESULTS = ROOT / "build" / "demo"

#: Of each GPU, shared with other users: their GiB, utilisation in percent, °C, watts.
_OTHER_USERS = ((61, 97, 71, 341), (0, 0, 34, 62), (22, 48, 55, 187), (0, 0, 33, 60))
VIRTUAL_DEVICES = len(_OTHER_USERS)

#: The cell that says so, in a notebook that was executed on a virtual GPU.
_NOTE = "virtual-gpu"
VIRTUAL_NOTE = (
    "> These outputs come from a **virtual GPU**. PyTorch is real, with its memory allocator, "
    "streams and events. GPU kernels take time, but compute nothing. So the times, the memory and "
    "the devices mean something. The values in the tensors do not."
)
_ASK = """
import torch
if torch.cuda.is_available():
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    torch.ones(1, device="cuda").add_(1).item()
    print(", ".join(names))
"""


@dataclass(frozen=True)
class Machine:
    """The machine that the notebooks are executed on."""

    #: Shown: ``"NVIDIA A100, NVIDIA A100"`` or ``"4 virtual GPUs"``.
    name: str
    environment: Mapping[str, str]
    virtual: bool


def this_machine() -> Machine:
    """Find this machine's GPU, if torch can use one here; else virtual ones."""
    environment = python_environment(os.environ)
    asked = forks.run([sys.executable, "-c", _ASK], env=environment)
    names = asked.stdout.strip() if asked.returncode == 0 else ""
    return Machine(names, environment, virtual=False) if names else virtual_machine()


#: Before torch 2.15 cuBLAS's work space is kept after the first product, and is shown as memory
#: of C++. Without it, all versions of torch show the same words.
_NO_WORK_SPACE = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0"}


def virtual_machine() -> Machine:
    """A machine with virtual GPUs (built with the C compiler that is there)."""
    from tests.virtual_gpu import GPU, ExternalProcess, Scenario, environment

    scenario = Scenario(
        devices=[
            GPU(
                "NVIDIA A100-SXM4-80GB",
                compute_capability=(8, 0),
                utilization=utilization,
                temperature=temperature,
                power=power,
                power_limit=400,
            )
            for _, utilization, temperature, power in _OTHER_USERS
        ],
        # Pids above Linux's maximum: of no process here.
        processes=[
            ExternalProcess(index, 2**22 + index, gib * 2**30)
            for index, (gib, *_) in enumerate(_OTHER_USERS)
            if gib
        ],
        profile="h100",  # calls and first uses take their time, as where the reader is
    )
    variables = python_environment(environment(scenario)) | _NO_WORK_SPACE
    return Machine(f"{VIRTUAL_DEVICES} virtual GPUs", variables, virtual=True)


def without_memory_figures() -> Machine:
    """A machine whose NVML does not report memory: with a GB10, whose CPU shares it."""
    from tests.virtual_gpu import GPU, Scenario, environment

    unsupported = frozenset({"memory", "temperature", "power"})
    gpu = GPU("NVIDIA GB10", compute_capability=(12, 1), integrated=True, unsupported=unsupported)
    variables = python_environment(environment(Scenario(devices=[gpu])))
    return Machine("a virtual GPU that does not report its memory", variables, virtual=True)


def notebooks() -> list[Path]:
    return sorted(SOURCES.glob("*.ipynb"))


def execute(
    source: Path | nbformat.NotebookNode,
    machine: Machine,
    *,
    folder: Path = SOURCES,
) -> nbformat.NotebookNode:
    """Execute a notebook and return it with its outputs, and a note if the GPU was virtual.

    ``folder`` is the kernel's working folder. In a run of the tests the kernel is forked.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed that is not meant to.
    """
    import nbformat
    from nbclient import NotebookClient

    class Client(NotebookClient):
        def create_kernel_manager(self) -> Any:
            return manage(super().create_kernel_manager())

    notebook = nbformat.read(source, as_version=4) if isinstance(source, Path) else source
    notebook.cells = [cell for cell in notebook.cells if cell.get("id") != _NOTE]
    if machine.virtual:
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(VIRTUAL_NOTE, id=_NOTE))
    client = Client(
        notebook,
        timeout=300,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    # Else torch reports on stderr what its exception says.
    environment = {"TORCH_CPP_LOG_LEVEL": "ERROR", **machine.environment}
    executed: nbformat.NotebookNode = client.execute(env=environment)
    return executed


def as_html(notebook: nbformat.NotebookNode, name: str, *, theme: str = "light") -> str:
    """Return the notebook as one page."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(theme=theme)
    body, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": name}})
    page: str = body
    return page
