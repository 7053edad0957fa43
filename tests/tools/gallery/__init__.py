"""``python -m tests.tools.gallery``: pictures of what the magics show, in ``docs/gallery/``.

`items` has the cells, `session` runs them in a kernel and in a terminal, `pictures`
photographs both.
"""
