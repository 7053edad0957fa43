"""The magics, one file each: parse, call, display. The only place that raises ``UsageError``."""
