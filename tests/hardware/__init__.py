"""Tests for a machine with a real GPU: ``pytest tests/hardware --hardware`` (see CONTRIBUTING.md).

The virtual GPU does what we believe the real one does. Here the belief is checked, and what was
found is kept in ``records/``.
"""
