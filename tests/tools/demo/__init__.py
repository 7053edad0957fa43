"""``python -m tests.tools.demo``: execute the notebooks of ``demo_notebooks/``."""
