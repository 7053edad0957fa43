"""What the environment of whoever starts the tests may not decide.

A test says itself what its processes are started with; what is set here would come on top. Home,
locale, time zone and terminal stay: the package has to do with any (`tests.tools.hostile`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_NAMES = re.compile(
    # Which GPUs, and how they are used.
    r"CUDA_.*|NVIDIA_.*|CUBLAS.*|CUDNN_.*|NCCL_.*|PYTORCH_.*|TORCH.*|GPUMAGIC_.*"
    # How many threads.
    r"|OMP_.*|MKL_.*|KMP_.*|OPENBLAS_.*|GOMP_.*"
    # Ranks of a job that these tests are no part of.
    r"|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_(ADDR|PORT)|GROUP_RANK|SLURM_.*|OMPI_.*|PMI.*|GLOO_.*"
    # Where the user's own settings are, and what they are.
    r"|IPYTHON.*|JUPYTER.*|JPY_.*|IPP_.*|KERNEL_.*|MPL.*|MATPLOTLIBRC|KUBERNETES_.*"
    # What Python does before the first line of a test.
    r"|PYTHON(WARNINGS|STARTUP|INSPECT|OPTIMIZE|IOENCODING|BREAKPOINT|SAFEPATH|_COLORS|_BASIC_REPL)"
    # How wide and how coloured.
    r"|COLUMNS|LINES|FORCE_COLOR|CLICOLOR.*|TTY_.*"
)


def foreign(names: Iterable[str]) -> list[str]:
    """Return those of these variables that a test must not depend on."""
    return [name for name in names if _NAMES.fullmatch(name)]


def leave() -> None:
    """Take them out of the environment of this process, and of those that it starts."""
    for name in foreign(list(os.environ)):
        del os.environ[name]
