"""GPU memory: how much is in use, what code changes, what holds it, how to free it.

How much
    `report` (``%gpumem``), `peak_ledger` (exact peaks, the user's own unchanged; ``%gpumem on``),
    `measurement` (``%%gpumem``, `gpumagic.gpumem`), `line_memory` (``--lines``), `comparison`
    (``--against``), `limit` (``%gpumem limit``).
What holds it
    `objects` (from the variables to the allocator's blocks), `holders` (``%gpumem vars``),
    `freeing` (``%gpumem free``), `history` (what torch records: live memory by cell, snapshots).
Too little
    `oom` (the report below an out-of-memory).
"""
