"""The results of ``%gpumem``. Bytes; None for what is not known.

`memory_report` (the memory now), `memory_delta` (the change by a cell), `line_memory` (by lines),
`memory_log` (by every cell), `holders` (``vars``), `cell_holdings` (``cells``), `freed`, `limit`,
`history` (``record``, ``snapshot``), `out_of_memory` (below a traceback).
"""
