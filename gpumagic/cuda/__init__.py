"""The devices and the state of this process, from the CUDA driver, NVML and torch.

Only `pytorch` imports ``torch``, and only `nvml` imports ``pynvml``.
"""
