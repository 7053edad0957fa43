"""GPU time: of one run, of repeated runs, of lines, of every cell.

One run
    `event_timer` (events on every busy stream), `backends` (GPUs that are not CUDA's), `run` (host,
    CPU and GPU time of one run, and the aggregate of several), `compilations` (of torch.compile).
Repeated runs
    `plan` (what is asked for, and when to stop), `benchmark` (the runs), `delay` and `bottleneck`
    (GPU or host).
Line by line
    `marks` (events on all streams in use), `line_times` (the times between them, and waits),
    `line_verdict` (what limits the cell), `lines` (all of these for one run).
Functions and magics
    `api` (`gpumagic.cudatime`), `per_cell` (``%cudatime on``), `comparison` (``--compare``,
    ``--against``, ``--on``), `profiler` (``--kernels``, ``--trace``, ``--nvtx``), `work`
    (``--flops``, ``--energy``).
"""
