"""Erasure on request. plan.py is the kind, erasing.py selects objects, `certificate` reports copies that are left."""
