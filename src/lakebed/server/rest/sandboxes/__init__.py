"""Sandboxes: they limit their writers to a branch and a time."""
