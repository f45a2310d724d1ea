"""Read what a mark compares. What lies in the namespace: slices (listing) and our own files (special). What names it:
commits (history), their ranges (ranges), the rows of those (selecting), and all else that names objects (named).
"""
