"""Tools for development: the notebooks, the documentation, the wheel."""
