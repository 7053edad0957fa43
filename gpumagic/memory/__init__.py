"""GPU memory: how much is in use, what code changes, what holds it, how to free it.

How much
    `report` (``%gpumem``), `peak_ledger` (exact peaks, the user's own unchanged; ``%gpumem on``),
    `measurement` (``%%gpumem``, `gpumagic.gpumem`, ``--lines``), `limit` (``%gpumem limit``).
What holds it
    `torch_memory` (the allocator's blocks and history, what torch keeps in C++), `walk` (from the
    roots to the blocks), `roots` (the user's variables, IPython's own references), `holders`
    (``%gpumem vars`` and ``free``).
Too little
    `oom` (the report below an out-of-memory).
"""
