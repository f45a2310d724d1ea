"""Explain why an object exists and until when, or which run deleted it."""
