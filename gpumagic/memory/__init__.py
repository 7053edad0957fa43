"""GPU memory: how much there is, what code does to it, who holds it, how to get it back.

How much
    `report` (``%gpumem``), `peaks` (exact peaks, the user's own unharmed), `measurement`
    (``%%gpumem`` and `gpumagic.gpumem`), `every_cell` and `log` (``%gpumem on``).
Line by line, cell by cell
    `line_sources`, `lines` and `stayed` (``--lines``), `history` (``%gpumem record``).
Who holds it
    `blocks` (the allocator's), `tensors` (the walk over the user's objects), `referents` (what each
    refers to), `pinned` (what a notebook holds on to by itself), `holding` (all of them added up),
    `owners` (who holds some without a name: threads, event loops, what is yet to be called),
    `certainty` (whether all that refers to it is known), `scanning` (what no name
    leads to, by all objects of the process).
Getting it back
    `freeing` (``%gpumem free``), `oom` and `remedies` (the out-of-memory report), `beginning` (the
    counters as a cell begins, with which its failure is compared).
"""
