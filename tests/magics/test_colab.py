"""What Google Colab does differently: how its kernel is started, its shell, who restarts it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.ioloop import AsyncIOLoopKernelManager
from traitlets.config import Config

from tests.support.kernels import PATIENCE, Kernel, manage, running_kernel

LAUNCHER = "tests.support.colab_launcher"
CLASSES = (
    "[type(each).__name__ for ip in [get_ipython()] "
    "for each in (ip, ip.kernel, ip.history_manager, ip.inspector)]"
)
OWN_CLASSES = ["Shell", "Kernel", "History", "Inspect"]
#: Too late for a choice from here on.
USES_CUDA = "import torch; x = torch.arange(5).cuda()"
PROCESS = "(__import__('os').getpid(), __import__('sys').orig_argv)"


@pytest.fixture
def colab(tmp_path: Path) -> Iterator[Kernel]:
    """A kernel as Colab starts it."""
    with running_kernel(tmp_path, fresh=True, launcher=LAUNCHER) as kernel:
        yield kernel


def test_the_magics_in_its_shell(colab: Kernel) -> None:
    assert colab.value(CLASSES) == OWN_CLASSES
    for magic in ("gpu", "cudatime", "gpumem"):  # with nothing below it: the body is a blank there
        assert colab.run(f"%%{magic} --help").status == "ok"
    assert "cuda:0" in colab.run("%gpu").shown
    assert "applied" in colab.run("%%gpu 1\nimport torch").shown
    assert "GPU" in colab.run("%%cudatime\ntorch.ones(9, device='cuda')").shown
    assert "2.00 KiB" in colab.run("%%gpumem\ny = torch.ones(300, device='cuda')").shown
    assert colab.value("get_ipython().history_manager.cells[-2][:8]") == "%%gpumem"
    defined = colab.run("def step():\n    pass").execution_count
    colab.run("from gpumagic.cells.compile import cell_of")
    assert colab.value("cell_of(get_ipython(), step.__code__.co_filename)") == defined
    failed = colab.run("%%cudatime\n1 / 0", raising=False).error
    assert failed is not None
    assert failed["colab"] is True, "its own _showtraceback sent it"
    help_ = colab.client.inspect("%cudatime", 9, reply=True, timeout=PATIENCE)["content"]
    assert "--lines" in help_["data"]["text/plain"]


def test_a_restart_comes_back_through_its_launcher(colab: Kernel) -> None:
    before = colab.value(PROCESS)
    colab.run(USES_CUDA)
    asking, below = colab.submit("%gpu reset --restart"), colab.submit("x.tolist()")
    assert colab.wait(asking).shown.count("restarted: ") == 1
    assert colab.wait(below).value == "[0, 1, 2, 3, 4]"
    assert colab.value(PROCESS) == before
    assert colab.value(CLASSES) == OWN_CLASSES
    assert colab.value("__import__('sys').modules['__main__'].__dict__.get('x') is x") is True


def test_a_kernel_that_dies_is_started_again(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """Its manager takes a restart in place for no death, and starts after a death from new."""
    asyncio.run(_watched(child_environment(), tmp_path))


async def _watched(environment: dict[str, str], folder: Path) -> None:
    watch = Config({"KernelRestarter": {"time_to_dead": 0.1, "random_ports_until_alive": False}})
    manager = AsyncIOLoopKernelManager(kernel_name="python3", config=watch)
    manage(manager, launcher=LAUNCHER, fresh=True)
    await manager.start_kernel(env=environment, cwd=str(folder))
    deaths: list[bool] = []
    died = asyncio.Event()
    manager.add_restart_callback(lambda: (deaths.append(True), died.set()))
    client = manager.client()
    client.start_channels()

    async def run(code: str) -> str:
        shown: list[str] = []

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text") or content.get("data", {}).get("text/plain", ""))

        reply = await client.execute_interactive(
            code, output_hook=show, allow_stdin=False, timeout=PATIENCE
        )
        assert reply["content"]["status"] == "ok", reply
        return "".join(shown)

    try:
        await client.wait_for_ready(timeout=PATIENCE)
        await run("%load_ext gpumagic")
        await run(USES_CUDA)
        assert "restarted: " in await run("%gpu off --restart")
        pid = int(await run("import os; os.getpid()"))
        assert not deaths
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(died.wait(), PATIENCE)
        await client.wait_for_ready(timeout=PATIENCE)
        assert await run("import os; 'CUDA_VISIBLE_DEVICES' in os.environ") == "False"
        assert await run(CLASSES) == str(OWN_CLASSES)
        assert int(await run("os.getpid()")) != pid
        await run("%load_ext gpumagic")
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
