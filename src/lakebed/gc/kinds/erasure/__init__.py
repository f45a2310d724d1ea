"""Erasure on request: from a selection to objects (erasing), which collection proves that no garbage is left (proving),
and a certificate of what went and what still has the content (certifying). The kind is plan.py.
"""
