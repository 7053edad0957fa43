"""From the user's variables through Python's objects to the allocator's blocks; no user code runs.

`roots` (the variables, and IPython's own references), `walk` and `object_graph` (from them to the
blocks), `torch_graph` (what torch keeps in C++), `blocks` (the allocator's), `garbage` (whose the
blocks are that no variable leads to).
"""
