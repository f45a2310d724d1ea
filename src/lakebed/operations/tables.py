"""Iceberg tables: the catalog, with the routes of its standard below `/iceberg/v1`, and what that standard lacks.

A prefix names the ref: `lake.main`. Without a prefix, namespaces begin with repository and ref, and the door puts both
where these routes have them (`server/iceberg/places.py`). In resources, `/` parts the levels of a namespace.

Ours, for people, stand last. There `table` is the path of a table, `sales/orders`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, ParamSpec, TypeVar

from lakebed import wire

from .history import READ_SOURCE
from .operation import (
    AT_ANY,
    AT_BRANCH,
    AT_REF,
    BRANCH,
    LIST_BYTES_MAX,
    LOGGED_IN,
    NOTHING,
    ONE_BRANCH,
    ONE_REF,
    ONE_REPOSITORY,
    PAGE,
    PUBLIC,
    PUBLIC_BYTES_MAX,
    REF,
    REPOSITORY,
    At,
    Operation,
    Parameter,
    Permission,
    delete,
    flag,
    get,
    head,
    header,
    on,
    post,
)

B = TypeVar("B")
A = TypeVar("A")
P = ParamSpec("P")

CATALOG_ROOT: Final = "/iceberg/v1"
_AT: Final = (At("ref", "branch"),)
_FOLDER: Final = REPOSITORY + "/object/{namespace}"
_TABLE: Final = _FOLDER + "/{table}.iceberg/table.json"
_NAMED: Final = _FOLDER + "/{name}.iceberg/table.json"
_SETTINGS: Final = _FOLDER + "/namespace.json"

PREFIX: Final = "/{repository}.{ref}"
_NAMESPACES: Final = PREFIX + "/namespaces"
_NAMESPACE: Final = _NAMESPACES + "/{namespace}"
_TABLES: Final = _NAMESPACE + "/tables"
_ONE_TABLE: Final = _TABLES + "/{table}"
_PAGE: Final = (Parameter("pageToken"), Parameter("pageSize", "integer"))
_DELEGATION: Final = header("x-iceberg-access-delegation")

_LIST: Final = on(REPOSITORY, "fs:ListObjects", at=(AT_REF,))
_READ: Final = on(_TABLE, "fs:ReadObject", at=(AT_REF,))
_COMMIT: Final = on(REF, "fs:CreateCommit", at=_AT)
_WRITE: Final = (*on(_TABLE, "fs:WriteObject", at=_AT), *_COMMIT)
WRITES: Final = Permission("fs:WriteObject", _TABLE, *_AT, when="of each table that is changed or made")
REMOVES: Final = Permission("fs:DeleteObject", _TABLE, *_AT, when="of the table that gets another name")
READS: Final = Permission("fs:ReadObject", _TABLE, *_AT, when="of each table that is changed, or renamed")
SETS: Final = Permission("fs:WriteObject", _SETTINGS, *_AT, when="of the namespace")
LENT: Final = Permission("fs:WriteObject", _TABLE, *_AT, when="so that the keys may write")
FILES: Final = Permission(
    "fs:ReadObject",
    REPOSITORY + "/object/{file}",
    At("tables", "branch"),
    when="of the metadata, on the branch `tables`",
)
SHOWN: Final = Permission("fs:ReadRepository", REPOSITORY, when="of each repository that is shown")
BRANCHES: Final = Permission("fs:ListBranches", REPOSITORY, AT_ANY, when="of a repository whose branches are listed")


def _in_catalog(make: Callable[P, Operation[B, A]]) -> Callable[P, Operation[B, A]]:
    """Make operations below CATALOG_ROOT."""

    def made(*args: P.args, **promises: P.kwargs) -> Operation[B, A]:
        return replace(make(*args, **promises), root=CATALOG_ROOT)

    return made


_get, _head, _post, _delete = _in_catalog(get), _in_catalog(head), _in_catalog(post), _in_catalog(delete)

GET_CATALOG_CONFIG: Final = _get(
    "getCatalogConfig",
    "/config",
    wire.CatalogSettings,
    LOGGED_IN,
    "Return the settings of the catalog of a ref: `warehouse` is `REPOSITORY/REF`. Without it, namespaces begin"
    " with both.",
    Parameter("warehouse"),
    asked_later=(SHOWN,),
)
LOG_IN_TO_CATALOG: Final = _post(
    "logInToCatalog",
    "/oauth/tokens",
    bytes,
    wire.CatalogToken,
    PUBLIC,
    "Exchange a key pair (`client_id`, `client_secret`) for a token, as OAuth 2 has it. The body is a form.",
    body_bytes_max=PUBLIC_BYTES_MAX,
    repeatable=False,
)
LIST_CATALOGS: Final = _get(
    "listCatalogs",
    "/namespaces",
    wire.NamespaceList,
    LOGGED_IN,
    "List repositories as namespaces, or, with one as `parent`, its branches. For clients without a warehouse.",
    Parameter("parent"),
    *_PAGE,
    asked_later=(SHOWN, BRANCHES),
)
LIST_NAMESPACES: Final = _get(
    "listNamespaces",
    _NAMESPACES,
    wire.NamespaceList,
    _LIST,
    "List the namespaces in `parent`, or the outermost.",
    Parameter("parent"),
    *_PAGE,
)
CREATE_NAMESPACE: Final = _post(
    "createNamespace",
    _NAMESPACES,
    wire.NamespaceProperties,
    wire.NamespaceProperties,
    _COMMIT,
    "Make a namespace: a folder, and a file with its properties. One commit of the branch.",
    asked_later=(SETS,),
    creates=True,
)
LOAD_NAMESPACE: Final = _get(
    "loadNamespace", _NAMESPACE, wire.NamespaceProperties, _LIST, "Return the properties of a namespace."
)
NAMESPACE_EXISTS: Final = _head("namespaceExists", _NAMESPACE, _LIST, "Tell whether there is a namespace.", status=204)
DROP_NAMESPACE: Final = _delete(
    "dropNamespace",
    _NAMESPACE,
    (*on(_SETTINGS, "fs:DeleteObject", at=_AT), *_COMMIT),
    "Remove a namespace that has no table and no namespace.",
)
UPDATE_NAMESPACE: Final = _post(
    "updateNamespace",
    _NAMESPACE + "/properties",
    wire.NamespaceChange,
    wire.NamespaceChanged,
    (*on(_SETTINGS, "fs:WriteObject", at=_AT), *_COMMIT),
    "Set and remove properties of a namespace.",
    repeatable=False,
)
LIST_TABLES: Final = _get("listTables", _TABLES, wire.TableList, _LIST, "List the tables of a namespace.", *_PAGE)
CREATE_TABLE: Final = _post(
    "createTable",
    _TABLES,
    wire.TableCreation,
    wire.LoadedTable,
    (*on(_NAMED, "fs:WriteObject", at=_AT), *_COMMIT),
    "Make a table, or, with `stage-create`, say what it will be.",
    _DELEGATION,
    creates=True,
)
REGISTER_TABLE: Final = _post(
    "registerTable",
    _NAMESPACE + "/register",
    wire.TableRegistration,
    wire.LoadedTable,
    (*on(_NAMED, "fs:WriteObject", at=_AT), *_COMMIT),
    "Make a table of metadata that lie in this repository's branch `tables`.",
    _DELEGATION,
    asked_later=(FILES,),
    creates=True,
)
LOAD_TABLE: Final = _get(
    "loadTable",
    _ONE_TABLE,
    wire.LoadedTable,
    _READ,
    "Return a table's metadata. With `vended-credentials` in its header, a key pair for the table's files, too,"
    " valid for an hour; with `remote-signing` alone, where to have requests signed.",
    Parameter("snapshots", choices=("all", "refs")),
    _DELEGATION,
    asked_later=(LENT,),
)
LOAD_TABLE_CREDENTIALS: Final = _get(
    "loadTableCredentials",
    _ONE_TABLE + "/credentials",
    wire.TableCredentials,
    _READ,
    "Return a key pair for the table's files, valid for an hour.",
    asked_later=(LENT,),
)
SIGN_FILE_REQUEST: Final = _post(
    "signFileRequest",
    _ONE_TABLE + "/sign",
    wire.FileRequest,
    wire.SignedFileRequest,
    _READ,
    "Sign one request to the gateway for a file of the table, for clients that want no key (`remote-signing`).",
    asked_later=(LENT,),
    repeatable=True,
)
TABLE_EXISTS: Final = _head("tableExists", _ONE_TABLE, _READ, "Tell whether there is a table.", status=204)
COMMIT_TABLE: Final = _post(
    "commitTable",
    _ONE_TABLE,
    wire.TableCommit,
    wire.CommittedTable,
    (*_WRITE, *on(_TABLE, "fs:ReadObject", at=_AT)),
    "Change a table, or make one that was staged: one commit of the branch.",
    repeatable=False,
    body_bytes_max=LIST_BYTES_MAX,
)
DROP_TABLE: Final = _delete(
    "dropTable",
    _ONE_TABLE,
    (*on(_TABLE, "fs:DeleteObject", at=_AT), *_COMMIT),
    "Remove a table from the branch. Its files go by retention, with `purgeRequested`, too: commits name them.",
    flag("purgeRequested"),
)
REPORT_TABLE_METRICS: Final = _post(
    "reportTableMetrics",
    _ONE_TABLE + "/metrics",
    bytes,
    NOTHING,
    _READ,
    "Take a client's report of a scan or a commit, and forget it.",
    status=204,
    repeatable=True,
)
RENAME_TABLE: Final = _post(
    "renameTable",
    PREFIX + "/tables/rename",
    wire.TableRename,
    NOTHING,
    _COMMIT,
    "Give a table another name. Its files stay where they are.",
    asked_later=(REMOVES, READS, WRITES),
    status=204,
    repeatable=False,
)
COMMIT_TABLES: Final = _post(
    "commitTables",
    PREFIX + "/transactions/commit",
    wire.TablesCommit,
    NOTHING,
    _COMMIT,
    "Change several tables of a branch in one commit, or none of them.",
    asked_later=(READS, WRITES),
    status=204,
    repeatable=False,
    body_bytes_max=LIST_BYTES_MAX,
)

# Ours

_ENTRY: Final = REPOSITORY + "/object/{table}.iceberg/table.json"
_NAME: Final = Parameter("table", is_required=True)
_STORED: Final = on(_ENTRY, "fs:ReadObject", at=(AT_REF,))
AS_ENTRY: Final = Permission("fs:ReadObject", _ENTRY, At("ref"), when="at the ref that the table goes back to")

LIST_ALL_TABLES: Final = get(
    "listAllTables",
    ONE_REF + "/tables",
    wire.TableEntryList,
    _LIST,
    "List the tables of a ref, or of a `namespace` (`sales/eu`) and those in it.",
    Parameter("namespace"),
    *PAGE,
)
STAT_TABLE: Final = get(
    "statTable",
    ONE_REF + "/tables/stat",
    wire.TableDetails,
    _STORED,
    "Return what a table's metadata say, how much is stored for it, and the commit that changed it last.",
    _NAME,
)
LIST_TABLE_VERSIONS: Final = get(
    "listTableVersions",
    ONE_REF + "/tables/versions",
    wire.TableVersionList,
    (*_STORED, *on(REF, "fs:ReadBranch", at=(AT_REF,))),
    "List the commits of a ref's own history that changed a table, newest first, each with the snapshots that it"
    " brought. A page may end early, even empty, while `has_more` is true.",
    _NAME,
    *PAGE,
)
DIFF_TABLE: Final = get(
    "diffTable",
    ONE_REPOSITORY + "/refs/{leftRef}/diff/{rightRef}/table",
    wire.TableDifference,
    on(_ENTRY, "fs:ReadObject", at=(At("leftRef"), At("rightRef"))),
    "Compare a table at two refs: its schema, properties and snapshots, and the files and rows of the current ones.",
    _NAME,
)
ROLL_BACK_TABLE: Final = post(
    "rollBackTable",
    ONE_BRANCH + "/tables/rollback",
    wire.TableRollback,
    wire.TableRolledBack,
    (*on(_ENTRY, "fs:ReadObject", "fs:WriteObject", at=(AT_BRANCH,)), *on(BRANCH, "fs:CreateCommit")),
    "Set a table back to a snapshot that it has, or to what it is at a ref, where it may be a table that was dropped"
    " here. One commit of the branch.",
    _NAME,
    asked_later=(AS_ENTRY, *READ_SOURCE),
    repeatable=False,
)
