"""From the user's variables through Python's objects to the allocator's blocks; no user code runs.

`roots` (the variables, and IPython's own references), `walk` (all that they lead to),
`object_graph` (of that, what leads to memory, and what else holds it), `torch_graph` (what torch
keeps in C++), `blocks` (the allocator's), `garbage` (whose the blocks are that no variable leads
to).
"""
