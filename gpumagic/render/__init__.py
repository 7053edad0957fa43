"""Blocks (tables and lines), drawn as text for a terminal or as HTML for a notebook.

`blocks` are what is drawn, by `text` and by `html`, in `colors` and `units`; `source_code` colours
lines of Python. `plots` are pictures, by matplotlib. No result is imported: each result in
``gpumagic.results`` returns the blocks that show it.
"""
