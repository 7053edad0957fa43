"""The magics: what is typed, and what is shown. Only here ``UsageError`` is raised.

`gpu`, `cudatime` and `gpumem` have a folder each, with ``<magic>_options`` (what can be typed) and
``<magic>_command`` (what is done). They share

Loading
    `loading` (and unloading), `magic_class` (the magics as IPython calls them), `magic_state` (what
    is kept in a shell).
The line of a magic
    `option_forms` (options, declared; the help), `argument_types` (their values), `parsing` (a line
    read), `completion` (Tab).
What is shown
    `delivery` (a result shown, stored, returned), `outcome` (a result compared, written to a file),
    `live_display` (progress), `explaining` (why a cell failed).
Many machines
    `cluster` (``--cluster``).
"""
