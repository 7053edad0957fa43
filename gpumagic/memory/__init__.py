"""GPU memory: how much is in use, what code changes, what holds it, how to free it.

How much
    `report` (``%gpumem``), `exact_peaks` (of any part of a program, the user's own unchanged),
    `measurement` (``%%gpumem``, `gpumagic.gpumem`), `line_memory` (``--lines``),
    `every_cell_memory` (``%gpumem on``), `against_stored` (``--against``),
    `limit` (``%gpumem limit``).
What holds it
    `objects` (from the variables to the allocator's blocks), `holders` (``%gpumem vars``),
    `freeing` (``%gpumem free``), `history` (what torch records: live memory by cell, snapshots).
Too little
    `oom` (the report below an out-of-memory).
"""
