"""One file for each database. `lakebed.kv.open_store` imports a driver when a URI names it, never before: only users of
a database need its client library. docs/formats/kv.md says how to write a driver.
"""

__all__: list[str] = []
