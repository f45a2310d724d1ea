"""The contract's operations, one file for each resource. Each file exports `routes(state)`; `app.py` collects them.

A handler reads its arguments, calls one function, and builds one record. It decides only wording.
"""
