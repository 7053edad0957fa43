"""``%gpu`` and ``%%gpu``."""
