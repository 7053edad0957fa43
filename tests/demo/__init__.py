"""``python -m tests.demo``: the notebooks of ``demo_notebooks/``, executed."""
