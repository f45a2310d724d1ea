"""The door of Iceberg's REST catalog, at `/iceberg` (docs/design/0016-tables.md).

door.py         one request: place, caller, gate, handler; and errors in the catalog's form
places.py       repository, ref and namespace of a request, with a prefix or without
namespaces.py   settings, logins, namespaces
tables.py       tables: list, load, make, change, drop
changing.py     from a client's commit, or a merge that appends, to a change of the branch; and what a table reaches
credentials.py  where the files are reached, and keys for those of one table
branch_tables.py    beside the standard, at the API's root: tables for people: list, show, history, diff, roll back
"""

from . import branch_tables, namespaces, tables
from .changing import Reading, appending
from .door import CatalogDoor
from .places import CatalogRequest
