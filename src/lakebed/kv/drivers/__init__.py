"""One file a database. They are imported when a URI asks for them (`lakebed.kv.open_store`), never before, so that a
database's client library is needed only by those who use that database. How to write one: docs/formats/kv.md.
"""

__all__: list[str] = []
