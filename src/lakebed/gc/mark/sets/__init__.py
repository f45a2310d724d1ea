"""Hold sets of objects that are too large for memory. An object has one place (places). Bitmaps pack the objects of a
slice (packing). Buckets divide a set, and are compared one after another (bucketed).
"""
