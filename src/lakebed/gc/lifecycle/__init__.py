"""Find what is due by a lifecycle policy: from rows of ranges (due), or from saved hours, without a join (dues, going).

`trees` keeps which ranges a history has. `tables` writes what a run found, for people. The kind is kinds/lifecycle.py.
"""
