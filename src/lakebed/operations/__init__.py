"""One table of operations: every door, the permission gate, the client and the reference are made from it.

An operation is stated once, in the file of its noun. `table` has them all.
Import `table` and the files of `gc` by name: they load the records of `lakebed.gc.messages`, and so pyarrow.
"""

from .operation import (
    API_ROOT,
    LOGGED_IN,
    NOTHING,
    PUBLIC,
    PUBLIC_BYTES_MAX,
    AnyOperation,
    At,
    Operation,
    Parameter,
    Permission,
)
