"""The results of ``%gpumem``. Bytes; None for what is not known."""
