"""The restart in place: real kernels, real clients."""

#: Initialises the CUDA driver, which makes any other choice too late; without the cost of torch.
FREEZE = "import ctypes; assert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0"
#: What a new process sees, in a cell that prints it.
SEES = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), 'gone' in globals())"


def report(shown: str) -> str:
    """What a restart reports, without the progress that ``--keep`` may show before it."""
    begins = shown.find("restarted: ")
    assert begins >= 0, shown
    return shown[begins:]
