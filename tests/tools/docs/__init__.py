"""``python -m tests.tools.docs``: write README.md's reference; ``--check`` only compares."""
