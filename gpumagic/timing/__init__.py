"""GPU time: of one run, of repeated runs, of lines, of every cell.

One run
    `event_timer` (the events around a run), `waits` (for them), `run_times` (what they show),
    `summary` (one result of several runs: what limits the code, and what is said), `compilation`
    (what torch.compile compiles meanwhile).
One more run
    `profiler` (``--kernels``, ``--trace``, ``--nvtx``), `energy` (``--energy``).
Repeated runs, and line by line
    `repeated` and `lines`, folders; `precision` (how precisely repeats tell a median).
Functions and magics
    `api` (`gpumagic.cudatime`), `cell_timer` (``%cudatime on``), `comparison` (``compare``,
    ``--against``, ``--on``).
"""
