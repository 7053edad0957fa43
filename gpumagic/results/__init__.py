"""The results of the magics: frozen dataclasses, each with the blocks that show it.

Units are bytes, seconds, percent, degrees Celsius and watts. A value that the hardware or the
driver does not report is ``None``, never 0. The public ones are names of ``gpumagic``, too.
Those of ``%cudatime`` are in `timing`, those of ``%gpumem`` in `memory`.
"""
