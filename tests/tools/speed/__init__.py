"""Run a command as on another machine: ``python -m tests.tools.speed TIMES COMMAND…``."""
