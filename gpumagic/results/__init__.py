"""The results of the magics: frozen dataclasses, each with the blocks that show it.

Units are bytes, seconds, percent, degrees Celsius and watts. A value that the hardware or the
driver does not report is ``None``, never 0. The public results are names of ``gpumagic``, too.

`timing` has the results of ``%cudatime``, `memory` those of ``%gpumem``. Of ``%gpu`` are `devices`
(the table), `processes` and `claims` (on a device), `selection` (a choice). All are built on
`base`; `cell_log` (of every cell), `source_table` (of lines), `storable` and `stored` (in files)
and `conditions` (on what was measured) are for several of them.
"""
