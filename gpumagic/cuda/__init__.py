"""The devices and the state of this process, from the CUDA driver, NVML and torch.

The devices
    `device_table` (all of it), `nvml` (what NVML measures), `processes` (on a GPU),
    `visible_devices` (what ``CUDA_VISIBLE_DEVICES`` shows), `driver` (what CUDA's driver knows).
This process
    `this_process` (what is known of it), `nvml_check` (by which torch asks without a start).
Why there is no CUDA
    `no_gpu` (no torch, driver or device), `probe` (does CUDA start, elsewhere), `start_errors` (why
    it never does), `init_failure` (it failed here), `dead_context` (it was destroyed here).

Only `pytorch` imports ``torch``, and only `nvml` imports ``pynvml``.
"""
