"""The contract's operations, one file for each resource. A handler says by `serves` which operation it
serves; `app.py` collects them.

    curl -u "$KEY:$SECRET" http://127.0.0.1:8000/api/v1/repositories/lake/branches

A handler reads its arguments, calls one function, and builds one record. It decides only wording.
"""
