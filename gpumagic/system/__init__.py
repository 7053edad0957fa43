"""The operating system and the interpreter: child processes, files, paths, text and objects.

Input from outside the process is read here, with limits on its size; none of it is executed.
"""
