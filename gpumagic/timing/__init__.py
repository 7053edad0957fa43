"""GPU time: of one run, of repeated runs, of lines, of every cell.

One run
    `event_timer` (events on every busy stream), `context_event` (and behind streams that are not
    torch's), `passive_timer` (the same without waiting beforehand), `launch_overhead` (queued
    behind a delay kernel), `waits` (devices that the code waited for), `backends` (GPUs that are
    not CUDA's), `bottleneck` (GPU or host), `run` (all of these for one run, and the aggregate of
    several).
Repeated runs
    `plan` (what is asked for), `conditions` (cold cache, clocks), `compilations` (of
    torch.compile), `stopping_rule` (when to stop), `benchmark` (the runs), `host_speed` (how fast
    the host is beside them).
Line by line
    `stream_marks` (events on all streams in use), `line_marks` (at the boundaries of lines),
    `line_timer` (the lines between them), `marked_runs` (long ones, summed up later), `short_runs`
    (without marks), `line_passes` (which are marked), `line_totals` (the sums), `passed_time` (how
    the time between marks is divided),
    `current_calls` (the call of a source that has the time), `synchronizations` (calls that wait,
    by name), `waits_by_time` (others), `input_waits`, `line_verdict` (what limits the cell),
    `line_profiler` (all of these for one run); of a run under the profiler: `line_log` (which line
    ran when), `trace_clock` (by the profiler's clock), `line_kernels` (what each launched).
Replacing torch's functions meanwhile
    `wrapped_functions` (what is replaced, and put back), `compiler_hooks` (not while torch's
    compiler works), `waiting_calls` (which functions wait).
Functions and magics
    `api` (`gpumagic.cudatime`), `per_cell` (``%cudatime on``), `comparison`, `ratio` and
    `default_device` (``--compare``, ``--on``), `regression` (``--against``), `kernel_trace` and
    `profiler` (``--kernels``, ``--trace``), `energy`, `flops` and `peaks` (``--energy``,
    ``--flops``).
"""
