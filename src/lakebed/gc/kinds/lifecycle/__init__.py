"""Find objects that are due by a lifecycle policy. plan.py is the kind.

With a join: ranges (reaching), then rows (due). Without one: saved hours (dues, going). `trees` saves the ranges of a
history. `tables` writes tables about a run for people.
"""
