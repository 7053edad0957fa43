"""`gpumagic.cells`: cells as IPython compiles and runs them, and hooks around them."""
