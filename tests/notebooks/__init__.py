"""Notebooks as people write them, and the objects that they hold: nothing of them is ever lost.

``pages/`` has the notebooks as text; `runner` runs their cells in a real kernel, in three ways.
"""
