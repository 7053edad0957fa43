"""Tools for development: the notebooks, the documentation, the versions of Colab."""
