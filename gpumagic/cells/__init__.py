"""Compile and run code as IPython does; hooks around cells; frames of the user's code.

Code of a notebook
    `compile` (a cell or a statement, apart from running it), `timeit_loop` (a statement in a loop),
    `semicolon` (the ``;`` at its end), `magic_calls` (what a magic's code needs of IPython).
Code of a script
    `measured_block` (``with``), `decorators` (``@``).
Every cell
    `hooks` (what is called around every cell), `every_cell` (what is measured of every cell).
Line by line
    `line_sources` (the lines), `line_tracer` (which line runs).
The user's own
    `tracebacks` (which frames are the user's, and where), `user_names` (which variables).
"""
