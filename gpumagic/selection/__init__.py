"""The choice of the devices that this process sees: parse, apply and verify it; gate; claims."""
