"""The contract's operations, one file a resource. Each file exports `routes(state)`; `app.py` collects them.

A handler reads its arguments, calls one thing, and builds one record. What it decides on its own is only wording.
"""
