"""GPU memory: how much is in use, what code changes, what holds it, how to free it.

How much
    `report` (``%gpumem``), `peak_ledger` (exact peaks, the user's own unchanged), `measurement`
    (``%%gpumem``, `gpumagic.gpumem`, ``--against``), `per_cell` (``%gpumem on``), `limit`
    (``%gpumem limit``), `fit` (``--fit``).
By line, by cell
    `line_profiler` (``--lines``), `history` (``%gpumem record``, ``cells``, ``snapshot``).
What holds it
    `blocks` (of torch's allocator), `walk` (from the roots to the blocks), `torch_graph` (what
    torch keeps in C++), `roots` (the user's variables, IPython's own references), `holders`
    (``%gpumem vars``: the sum).
Freeing it
    `freeing` (``%gpumem free``), `oom` (the report below an out-of-memory).
Parking it in host memory
    `parking` (``%gpumem park``), `parkable` (which memory can be taken), `parking_checks` (what it
    is refused for).
"""
