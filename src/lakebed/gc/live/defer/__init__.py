"""Keep deferred runs: their windows, restores from them, and their undo."""
