"""Tables on branches, and the hidden branch that holds their files (docs/design/0016-tables.md).

names       what tables, namespaces and files are called, and the errors
commits     folders and tables of a commit; a commit of tables is one of a branch: files are named, then checked
tables      what doors call: namespaces, tables, files
"""

from lakebed.base import TABLES

from .commits import TableChange, TableCommits, tables_of
from .names import (
    RECORD,
    SUFFIX,
    TABLES_DAYS,
    MissingFile,
    NamespaceConflict,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    OutsideTables,
    TableConflict,
    TableExists,
    TableName,
    TablesNameTaken,
)
from .tables import Table, Tables
