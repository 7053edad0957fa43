"""The operating system and the interpreter: child processes, files, paths, text and objects.

All that comes from outside is read here, within bounds, and none of it is executed.
"""
