"""Blocks (tables and lines), and what draws them: text for a terminal, HTML for a notebook.

Knows no result: each result in ``gpumagic.results`` says what blocks show it.
"""
