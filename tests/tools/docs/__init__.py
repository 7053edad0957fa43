"""``python -m tests.tools.docs``: write the reference of the magics (``make docs``).

`reference` is that page, `pages` has the pages of ``docs/`` and their cells, `site` builds the site
(``make site``), `pictures` takes README's pictures (``make pictures``).
"""
