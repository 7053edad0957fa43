"""GPU memory: how much is in use, what code changes, what holds it, how to free it.

How much
    `report` (``%gpumem``), `peak_ledger` (exact peaks, the user's own unchanged), `measurement`
    (``%%gpumem`` and `gpumagic.gpumem`), `per_cell` (``%gpumem on``), `regression`
    (``--against``), `limit` (``%gpumem limit``), `fit` (``--fit``).
By line, by cell
    `line_profiler` (``--lines``), `history` (``%gpumem record``).
What holds it
    `snapshot` (of the allocator), `allocator_blocks` (its blocks), `object_graph` (the walk
    over the user's objects), `referents` (of each object), `notebook_references` (IPython's own
    references), `other_references` (threads, event loops, registered functions),
    `reference_counts` (whether all references to an object are known), `attribution` (the
    sum), `heap_scan` (of all objects, for memory that no variable references).
Freeing it
    `freeing` (``%gpumem free``), `oom` and `remedies` (the out-of-memory report), `start_counters`
    (the counters at a cell's start, with which its failure is compared).
Parking it in host memory
    `parking` (``%gpumem park``), `parkable_storages` (which memory can be parked), `parking_checks`
    (what it is refused for), `host_copies`, `unpark_on_use` (operations without a cell),
    `code_names` and `harmless_code` (which cells use none), `idle_parking` (``--after``).
"""
