"""Routes of objects: their records, their bytes, uploads by clients themselves, and imports."""
