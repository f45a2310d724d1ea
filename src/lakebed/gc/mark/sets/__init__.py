"""Sets of objects, too large for memory: one place for each object (places), packed as bitmaps (packing), and dealt
into buckets that are compared one after another (bucketed). What the sets mean, `inputs` and `mark.py` know.
"""
