"""``%cudatime`` and ``%%cudatime``."""
