"""Compile and run a cell as IPython does; hooks around cells; the frames of the user's code."""
