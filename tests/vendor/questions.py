"""What is asked of the driver, NVML and the CUDA runtime where there is no device, by ctypes.

A program, so that each asking has a process of its own: ``questions.py driver|nvml|runtime
[LIBRARY]`` prints the answers as JSON. Imports nothing of ours. NVIDIA's own libraries are asked
(tests/vendor), and the virtual GPU is asked the same and must answer the same
(tests/virtual_gpu/test_no_device.py).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any


def driver() -> dict[str, Any]:
    """Before a start that fails, after it, and with the variable changed in between."""
    cuda = ctypes.CDLL("libcuda.so.1")
    number, flags, handle = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p()
    raw = (ctypes.c_ubyte * 16)()

    def state() -> list[int]:
        return [
            cuda.cuDeviceGetCount(ctypes.byref(number)),
            cuda.cuDeviceGet(ctypes.byref(number), 0),
            cuda.cuDeviceGetUuid_v2(raw, 0),
            cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(number)),
            cuda.cuCtxGetCurrent(ctypes.byref(handle)),
        ]

    version = cuda.cuDriverGetVersion(ctypes.byref(number))
    answers = {"cuDriverGetVersion": version, "version": number.value, "before cuInit": state()}
    answers |= {"cuInit": cuda.cuInit(0), "after cuInit": state()}
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    answers |= {"cuInit once more": cuda.cuInit(0), "after that": state()}
    return answers


def nvml() -> dict[str, Any]:
    """NVML, which does not start, and what answers all the same."""
    lib = ctypes.CDLL("libnvidia-ml.so.1")
    lib.nvmlErrorString.restype = ctypes.c_char_p
    number, text = ctypes.c_uint(), ctypes.create_string_buffer(96)
    return {
        "nvmlShutdown, never started": lib.nvmlShutdown(),
        "nvmlInit_v2": lib.nvmlInit_v2(),
        "nvmlInitWithFlags": lib.nvmlInitWithFlags(0),
        "nvmlDeviceGetCount_v2": lib.nvmlDeviceGetCount_v2(ctypes.byref(number)),
        "nvmlSystemGetDriverVersion": lib.nvmlSystemGetDriverVersion(text, 96),
        "nvmlSystemGetNVMLVersion": lib.nvmlSystemGetNVMLVersion(text, 96),
        "nvmlShutdown": lib.nvmlShutdown(),
        "nvmlErrorString(9)": lib.nvmlErrorString(9).decode(),
    }


def runtime(library: str) -> dict[str, Any]:
    """The runtime, whose start fails once: it does not try again."""
    cudart = ctypes.CDLL(library)
    number = ctypes.c_int()

    def count() -> list[int]:
        number.value = -1
        return [cudart.cudaGetDeviceCount(ctypes.byref(number)), number.value]

    return {
        "cudaGetDeviceCount": [count(), count()],
        "cudaFree(0)": cudart.cudaFree(None),
        "cudaDeviceReset": cudart.cudaDeviceReset(),
        "cudaGetDeviceCount, after that": count(),
        "cudaSetDevice": cudart.cudaSetDevice(0),
        "cudaGetDevice": cudart.cudaGetDevice(ctypes.byref(number)),
        "cudaDriverGetVersion": cudart.cudaDriverGetVersion(ctypes.byref(number)),
        "version": number.value,
    }


#: What NVIDIA's own libraries answered (535.309.01), versions apart.
ANSWERS: dict[str, dict[str, Any]] = {
    "driver": {
        "cuDriverGetVersion": 0,
        "before cuInit": [3, 3, 3, 3, 3],
        "cuInit": 100,
        "after cuInit": [3, 3, 3, 3, 3],
        "cuInit once more": 100,
        "after that": [3, 3, 3, 3, 3],
    },
    "nvml": {
        "nvmlShutdown, never started": 0,
        "nvmlInit_v2": 9,
        "nvmlInitWithFlags": 9,
        "nvmlDeviceGetCount_v2": 1,
        "nvmlSystemGetDriverVersion": 1,
        "nvmlSystemGetNVMLVersion": 0,
        "nvmlShutdown": 0,
        "nvmlErrorString(9)": "Driver Not Loaded",
    },
}


def runtime_answers(code: int) -> dict[str, Any]:
    """The runtime's answers: all of them 100 (no device), or 35 (the driver is too old)."""
    counted = [code, -1]  # the number is left as it was
    return {
        "cudaGetDeviceCount": [counted, counted],
        "cudaFree(0)": code,
        "cudaDeviceReset": code,
        "cudaGetDeviceCount, after that": counted,
        "cudaSetDevice": code,
        "cudaGetDevice": code,
        "cudaDriverGetVersion": 0,
    }


def runtime_library() -> Path:
    """The CUDA runtime that the installed torch brings; torch is not imported for that."""
    spec = util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    return next(packages.glob("nvidia/*/lib/libcudart.so.*"))


def runtime_soname() -> str:
    """Its name for the loader: ``libcudart.so.13``."""
    return ".".join(runtime_library().name.split(".")[:3])


if __name__ == "__main__":
    ask: dict[str, Callable[..., Any]] = {f.__name__: f for f in (driver, nvml, runtime)}
    print(json.dumps(ask[sys.argv[1]](*sys.argv[2:])))
