"""Everything that a deleted repository has by record."""
