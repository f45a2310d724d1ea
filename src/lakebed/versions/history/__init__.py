"""The history of commits, read only.

history       the log, the merge base of two refs, and differences
walking       walk from heads down, children before parents
ancestors     jump to a far ancestor
"""
