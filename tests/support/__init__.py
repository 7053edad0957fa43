"""What the tests share: real shells, kernels and terminals, and the watch over global state."""
