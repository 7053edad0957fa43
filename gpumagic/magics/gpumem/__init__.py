"""``%gpumem`` and ``%%gpumem``.

`gpumem_options` (what can be typed), `gpumem_command` (the report, and one run), `fit` (``--fit``)
with `fit_search` (which size is tried next) and `fit_result`, `gpumem_verbs` (``on``, ``log``,
``free``, ``record`` and the other words), `memory_plot` (the picture of a cell's memory).
"""
