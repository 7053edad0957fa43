"""GPU time: of one run, of repeated runs, of lines, of every cell.

One run
    `event_timer` (events on every busy stream), `run` (host, CPU and GPU time of one run, and the
    aggregate of several), `profiler` (further runs for ``--kernels``, ``--trace``, ``--nvtx``,
    ``--flops``, ``--energy``).
Repeated runs
    `plan` (what is asked for, and when to stop), `benchmark` (the runs), `bottleneck` (GPU or
    host).
Line by line
    `line_times` (marks on all streams in use, the times between them, and waits), `lines` (those of
    one run, and what limits the cell).
Functions and magics
    `api` (`gpumagic.cudatime`), `per_cell` (``%cudatime on``), `comparison` (``--compare``,
    ``--against``, ``--on``).
"""
