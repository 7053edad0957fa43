"""NVIDIA's own driver and NVML, with no device behind them: what they answer, what we say then.

``make test-vendor``. That is what a user meets in a container started without its GPUs. Nothing is
virtual here; `questions` is asked of the virtual GPU too, which must answer the same.
"""
