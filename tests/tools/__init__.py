"""Tools about the tests: how much they reach (`covered`), and what they notice (`mutants`)."""
