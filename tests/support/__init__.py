"""Shared by the tests: real shells, kernels and terminals, and the check for global state."""
