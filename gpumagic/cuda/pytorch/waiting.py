"""Wait for the GPU: for one device, for all in use, or in a way that Ctrl-C ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpumagic.cuda.pytorch import torch_cuda

#: Seconds of waiting for the GPUs after which it is said.
_SILENT = 0.5


def synchronize(ordinal: int) -> None:
    """Wait until a device has finished all work. Only for a device that has a context.

    Raises:
        RuntimeError: earlier GPU work has failed.
    """
    torch = torch_cuda.module()
    with torch.cuda.device(ordinal):  # not `torch.cuda.synchronize`, which a cell may replace
        torch._C._cuda_synchronize()


def synchronize_all() -> None:
    """Wait for all work on every device in use."""
    for ordinal in torch_cuda.contexts():
        synchronize(ordinal)


def wait_for_all(say: Callable[[], None]) -> None:
    """Wait for all work on every device in use, and call ``say`` where that takes long.

    A thread waits, since CUDA's own wait cannot be interrupted. It covers streams that are not
    torch's, and needs no memory: the GPU may be full.

    Raises:
        RuntimeError: earlier GPU work has failed.
        KeyboardInterrupt: by Ctrl-C.
    """
    found = list[RuntimeError]()

    def wait() -> None:
        try:
            synchronize_all()
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=wait, name="gpumagic-wait", daemon=True)
    thread.start()
    thread.join(_SILENT)
    if thread.is_alive():
        say()
    while thread.is_alive():
        thread.join(0.1)
    if found:
        raise found[0]
