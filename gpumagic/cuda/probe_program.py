"""Find out the build of a torch, and whether its CUDA runtime starts.

Used on the torch of this process, and as a program in a child process, so that neither torch is
imported nor CUDA initialised here (`gpumagic.cuda.probe`). Imports nothing of gpumagic.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import Any


def build(torch: Any) -> dict[str, Any]:
    """Return versions and architectures of a torch, as plain data. Initialises nothing.

    Does not call ``torch.backends.cudnn.version()``, which initialises the driver, nor
    ``torch.cuda.get_arch_list()``, which in older torch queries whether CUDA is available.
    """
    functions = torch._C
    compiled = hasattr(functions, "_cuda_getDeviceCount")
    cudnn = getattr(functions, "_cudnn", None)
    return {
        "version": str(torch.__version__),
        "compiled": compiled,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": None if cudnn is None else ".".join(map(str, cudnn.getCompileVersion())),
        "architectures": (functions._cuda_getArchFlags() or "").split() if compiled else [],
    }


def start(torch: Any) -> dict[str, Any]:
    """Start the CUDA runtime; return how many devices it finds, and its message if it fails.

    Initialises the driver; creates no context.
    """
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        count = int(torch._C._cuda_getDeviceCount())
    texts = [str(warning.message).split(" (Triggered internally")[0] for warning in issued]
    return {"count": count, "message": " ".join(texts[-1].split()) if texts else None}


def main() -> None:
    """Print `build` and then `start` of the torch that this Python imports, a line of JSON each."""
    try:
        import torch
    except BaseException as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        lines = str(error).strip().splitlines() or ["-"]
        reason = "torch is not installed" if missing else f"{type(error).__name__}: {lines[0]}"
        print("\n" + json.dumps({"error": reason}), flush=True)
        return
    about = build(torch)
    print("\n" + json.dumps(about), flush=True)
    if about["compiled"]:
        print("\n" + json.dumps(start(torch)), flush=True)


if __name__ == "__main__":
    main()
    # Without clearing torch's modules, which takes as long as a third of their import.
    os._exit(0)
