"""``%gpumem`` and ``%%gpumem``."""
