"""Deferred runs: their windows, what is restored from them, and their undo."""
