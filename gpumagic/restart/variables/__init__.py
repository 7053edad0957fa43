"""The notebook's variables, kept over the restart: pickled, tried in a child, loaded."""
