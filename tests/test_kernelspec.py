"""A kernel without a GPU: ipykernel's own line, as the how-to page has it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "a-notebook-without-a-gpu.md"
SEEN = """
%load_ext gpumagic
import json, os, torch
seen = [torch.cuda.is_available(), torch.cuda.device_count()]
reset = %gpu reset -o -q
seen += [reset.status, len(reset.devices), os.environ['CUDA_VISIBLE_DEVICES']]
"""


def test_its_kernel_sees_no_gpu(
    child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    line = re.search(
        r"^\$ python (-m ipykernel install .*)$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert line is not None
    words = shlex.split(line[1].replace("--user", f"--prefix {tmp_path}"))
    subprocess.run([sys.executable, *words], env=child_environment(), check=True, timeout=600)
    folder = tmp_path / "share" / "jupyter" / "kernels"
    specs = KernelSpecManager(kernel_dirs=[str(folder)], ensure_native_kernel=False)
    assert specs.get_kernel_spec("no-gpu").display_name == "Python (no GPU)"
    manager = KernelManager(kernel_name="no-gpu", kernel_spec_manager=specs)
    manager.start_kernel(env=child_environment(), cwd=str(tmp_path))
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=300)
        reply = client.execute_interactive(
            SEEN, user_expressions={"seen": "json.dumps(seen)"}, timeout=300, output_hook=str
        )
        content = reply["content"]
        assert content["status"] == "ok", content
        text = content["user_expressions"]["seen"]["data"]["text/plain"]
        assert json.loads(text.strip("'")) == [False, 0, "unchanged", 0, "-1"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
