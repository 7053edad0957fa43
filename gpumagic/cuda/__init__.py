"""What the CUDA driver, NVML and ``torch.cuda`` say of the devices and of this process.

The only importers of ``torch`` (`torch_cuda`, `probe_program`) and of ``pynvml`` (`nvml`).
"""
