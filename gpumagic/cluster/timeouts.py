"""How long engines may take to reply."""

#: Seconds for an engine to reply, unless the caller gives another number.
TIMEOUT = 5.0
