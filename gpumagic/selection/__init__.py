"""Which devices this process sees: the grammar, a choice applied and verified, the gate."""
