"""Every promise about speed and exactness, measured: ``make bench``.

Each module ``bench_*.py`` has a function ``rows()`` that measures and yields `row.Row`s; it runs
on the virtual GPU. Ratios are of one run on one machine, measured in turns.
"""
