"""A trial of the kept variables in a child process: what fails is known before the restart.

The child has the new environment, and imports what the notebook has imported. Each try is a fork of
it, which maps the variables' data: only what is written to is copied. Tensors are on the CPU.
"""
