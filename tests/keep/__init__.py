"""Variables kept in one process and brought back in another."""
