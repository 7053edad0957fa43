"""``%gpu`` and ``%%gpu``.

`gpu_options` (what can be typed), `gpu_command` (what a line calls, and the table), `choosing` (a
choice for the process), `one_cell` (``%%gpu``), `restart` (``restart``, ``--restart``), `engines`
(``pin``, ``cluster``, ``--cluster``), `watch` (``watch``, ``plot``) with `watch_thread` (it
samples), `watch_history` (its result) and `history_plot` (the picture of that).
"""
