"""Replace a kernel, or IPython in a terminal, in place by a fresh process; keep variables."""
