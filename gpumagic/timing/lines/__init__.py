"""Line by line: the time of each line of a cell, and what limits the cell.

`marks` (how far the GPU had come at a line's end), `line_clock` (the time between two marks, and
waits), `verdict` (what limits the cell), `line_profiler` (all of it around one run).
"""
