"""Objects of a repository, and the ways in which they come: uploads, parts, imports; and lists of them for engines.

objects     upload, read, copy, stage, delete
multipart   uploads in parts
imports     objects from elsewhere in the object store, by name; `sources` finds them
symlinks    files that list addresses, for Hive and its like
"""
