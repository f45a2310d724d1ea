"""Delete all objects that a deleted repository has by record."""
