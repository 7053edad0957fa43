"""``python -m tests.docs``: what README.md takes from the code. ``--check`` only compares."""
