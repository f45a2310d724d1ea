"""Find objects that are due by a lifecycle policy. plan.py is the kind.

With a join: ranges (reaching.py), then rows (rows.py). Without one: saved hours (hours.py, plan.py). trees.py saves
the ranges of a history. tables.py writes tables about a run for people.
"""
