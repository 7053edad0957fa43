"""Which GPUs this process sees: a choice parsed, applied and verified; the gate; the claims."""
