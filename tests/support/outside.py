"""Remove from what the caller hands down what would change the results of tests.

A test says itself what its processes are started with; what is set here would come on top. Home,
locale, time zone and terminal stay: the package has to do with any.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path

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
    r"|COLUMNS|LINES|FORCE_COLOR|NO_COLOR|CLICOLOR.*|TTY_.*"
    # Options for this run of pytest, not for those that a test starts.
    r"|PYTEST_ADDOPTS"
)

#: A variable that is longer than this many characters is a shell's or a batch system's table, which
#: nothing here reads; a fork has room for so much (`tests.support.template`). Paths are kept.
_LONG = 4096


#: NVIDIA's libraries, one of which would be loaded before the virtual GPU's, or complained of.
_LIBRARIES = ("libcu*", "libnccl*", "libnvidia*")


def left(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without these variables."""
    found = {
        name: text
        for name, text in environment.items()
        if not _NAMES.fullmatch(name) and (len(text) <= _LONG or name.endswith("PATH"))
    }
    if "LD_LIBRARY_PATH" in found:
        folders = [f for f in found.pop("LD_LIBRARY_PATH").split(":") if f and not _has_cuda(f)]
        found |= {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}
    return found


def _has_cuda(folder: str) -> bool:
    return any(next(Path(folder).glob(pattern), None) for pattern in _LIBRARIES)


def leave() -> None:
    """Remove them from the environment of this process and its children.

    What these write may be changed by nobody else: the package asks who may change its files. And
    no memory of those that are aborted is written.
    """
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    kept = left(os.environ)
    for name in [*os.environ]:
        if name not in kept:
            del os.environ[name]
    os.environ.update(kept)
