"""GPU time: of one run, of repeated runs, of lines, of every cell.

One run
    `event_timer` (the events around a run), `waits` (for them), `run_times` (what they show),
    `summary` (one result of several runs: what limits the code, and what is said), `compilation`
    (what torch.compile compiles meanwhile).
One more run
    `profiler` (``--kernels``, ``--trace``, ``--nvtx``), `energy` (``--energy``).
Repeated runs
    `repeat_plan` (what is asked for, and when to stop), `benchmark` (the runs), `queued_runs` (the
    GPU's own time, where Python cannot launch fast enough), `cold_caches` (``--cold``).
Line by line
    `lines`, a folder.
Functions and magics
    `api` (`gpumagic.cudatime`), `cell_timer` (``%cudatime on``), `comparison` (``compare``,
    ``--against``, ``--on``).
"""
