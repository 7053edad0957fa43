"""GPU time: of one run, of repeated runs, of lines, of every cell.

One run
    `event_timer` (events on every busy stream), `context_event` (and behind streams that are not
    torch's), `passive_timer` (the same without waiting beforehand), `launch_overhead` (queued
    behind a delay kernel), `backends` (GPUs that are
    not CUDA's), `bottleneck` (GPU or host), `run` (all of these for one run, and the aggregate of
    several).
Repeated runs
    `plan` (what is asked for), `conditions` (cold cache, clocks), `compilations` (of
    torch.compile), `stopping_rule` (when to stop), `benchmark` (the runs), `host_speed` (how fast
    the host is beside them).
Line by line
    `marks` (events on all streams in use), `line_times` (the times between them, and waits),
    `line_verdict` (what limits the cell), `lines` (all of these for one run).
Functions and magics
    `api` (`gpumagic.cudatime`), `per_cell` (``%cudatime on``), `comparison`, `ratio` and
    `default_device` (``--compare``, ``--on``), `regression` (``--against``), `kernel_trace` and
    `profiler` (``--kernels``, ``--trace``), `energy`, `flops` and `peaks` (``--energy``,
    ``--flops``).
"""
