"""Tools about the tests: what they reach, what they notice, where they run."""
