"""From the user's variables through Python's objects to the allocator's blocks; no user code runs.

::

    Root ──────────> objects ──────────> tensors, storages ──────────> Block
    (a variable,     (lists, modules,    (by their address)            (of the allocator; in
    ``Out[3]``)      closures, frames)                                 several hands perhaps)

    search_space         walk            torch_graph                   blocks
    ipython_references   └───── object_graph, garbage ─────┘

- `ipython_references`: what IPython itself refers to (``Out``, ``_``, the last exception), and how
  that is forgotten. `search_space`: this and the user's variables as roots, and what is not
  entered.
- `walk` visits all that the roots lead to, by ``gc.get_referents``; `torch_graph` says what tensors
  and autograd's nodes lead to in C++. An object is known by its ``id()`` (`walk.ObjectId`).
- `blocks` finds the block of an address, a `blocks.BlockIndex`.
- `object_graph` has, of all visited objects, those that lead to blocks: what each leads to, what
  its blocks are to it, and what is referred to from elsewhere, too.
- `garbage` tells whose the blocks are that no root leads to.

Who owns which block is counted by `gpumagic.memory.holders.Survey`.
"""
