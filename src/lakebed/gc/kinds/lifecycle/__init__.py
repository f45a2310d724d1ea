"""Find objects that are due by a lifecycle policy: from ranges (reaching) and their rows (due), or without a join, from
saved hours (dues, going).

`trees` keeps which ranges a history has. `tables` writes what a run found, for people. The kind is plan.py.
"""
