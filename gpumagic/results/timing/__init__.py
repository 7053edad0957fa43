"""The results of ``%cudatime``. Seconds; None for what is not known.

`cuda_timing` is the result, whose times are each a `sample`; `line_timings` (``--lines``) and
`kernels` (``--kernels``) are parts of it. `comparison` is of ``compare``, `timing_log` of ``log``.
"""
