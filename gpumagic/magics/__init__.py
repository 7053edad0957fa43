"""The magics, a folder each: parse, call, display. Only here ``UsageError`` is raised."""
