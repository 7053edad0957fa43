"""The devices and the state of this process, from the CUDA driver, NVML and ``torch.cuda``.

The only importers of ``torch`` (`torch_cuda`, `probe`) and of ``pynvml`` (`nvml`).
"""
