"""What torch alone has: the state of its CUDA, its allocator, streams, events and profiler.

`torch_cuda` (torch itself, and whether CUDA is in use) and `build` (what it was built for);
`allocator`, `tensors`; `streams`, `cuda_events`, `waiting`, `graph_captures`; `profiling`;
`gpu_random`; `measured_on` (the conditions of a measurement); `any_device` (`gpumagic.device`).
"""
