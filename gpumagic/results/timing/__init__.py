"""The results of ``%cudatime``. Seconds; None for what is not known."""
