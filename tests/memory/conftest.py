"""The fixtures of the memory tests."""

from tests.support.allocator import all_objects, torch, with_stacks

__all__ = ["all_objects", "torch", "with_stacks"]
