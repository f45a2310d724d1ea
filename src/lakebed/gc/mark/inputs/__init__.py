"""Read both inputs of a mark. Listed objects: slices (listing), Lakebed's own files (special). Named objects: commits
(history), their ranges (ranges), rows of ranges (selecting), and all other records that name objects (named).
"""
