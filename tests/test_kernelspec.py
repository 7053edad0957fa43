"""A kernel without a GPU: ipykernel's own line, as the how-to page has it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager

from tests.support.kernels import Kernel

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "a-notebook-without-a-gpu.md"


def test_its_kernel_sees_no_gpu(
    kernel: Callable[..., Kernel], child_environment: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    line = re.search(
        r"^\$ python (-m ipykernel install .*)$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert line is not None
    words = shlex.split(line[1].replace("--user", f"--prefix {tmp_path}"))
    subprocess.run([sys.executable, *words], env=child_environment(), check=True, timeout=600)
    folder = tmp_path / "share" / "jupyter" / "kernels"
    specs = KernelSpecManager(kernel_dirs=[str(folder)], ensure_native_kernel=False)
    spec = specs.get_kernel_spec("no-gpu")
    assert spec.display_name == "Python (no GPU)"
    k = kernel(env=spec.env)
    k.run("import os, torch\nreset = %gpu reset -o -q")
    assert k.value("(torch.cuda.is_available(), torch.cuda.device_count())") == (False, 0)
    assert k.value("(reset.status, len(reset.devices))") == ("unchanged", 0)
    assert k.value("os.environ['CUDA_VISIBLE_DEVICES']") == "-1"
