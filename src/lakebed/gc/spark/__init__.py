"""A Spark session of our own: find Java, start the session, fork its Python workers. Nothing else of `gc` needs this.

What runs in a session, ours or another's, is `lakebed.gc.engines`.
"""
