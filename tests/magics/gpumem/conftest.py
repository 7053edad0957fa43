"""The fixtures of the tests of ``%gpumem``."""

from tests.support.allocator import all_objects, torch, with_stacks

__all__ = ["all_objects", "torch", "with_stacks"]
