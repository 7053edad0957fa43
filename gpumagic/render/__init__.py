"""Blocks (tables and lines), drawn as text for a terminal or as HTML for a notebook.

Imports no result: each result in ``gpumagic.results`` returns the blocks that show it.
"""
