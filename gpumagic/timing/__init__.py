"""GPU time: of a stretch of code, of code repeated, of every cell.

One stretch
    `bracket` (events on every stream that is busy), `whole` (and behind those that are not
    torch's), `passing` (the same without a wait), `queued` (behind a kernel that only waits),
    `backends` (GPUs that are not CUDA's), `bound` (GPU or host), `measure` (all of these for one
    stretch, and the result).
Many times
    `plan` (what is asked for), `conditions` (cold cache, clocks, compiling), `enough` (when to
    stop), `repetition` (the loop).
What the user meets
    `script` (`gpumagic.cudatime`), `every_cell` (``%cudatime on``), `comparing` and `placement`
    (``--compare``, ``--on``), `kernels` and `profiling` (``--kernels``, ``--trace``).
"""
