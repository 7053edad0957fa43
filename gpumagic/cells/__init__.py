"""Compile and run cells as IPython does; hooks around cells; frames of the user's code."""
