"""What torch alone has: the state of its CUDA, its allocator, streams, events and profiler."""
