"""Explain why an object is there and until when, or which run took it."""
