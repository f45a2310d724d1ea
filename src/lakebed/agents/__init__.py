"""Tools for agents: one table, offered over the Model Context Protocol (docs/design/0014-agents.md).

    scope.py        where an agent may read, and where its writes go
    asking.py       the port to operations: each call is one of the API, with its permissions, limits and audit lines
    own_sandbox.py  where writes go unless a branch is named: `lakebed mcp --branch lakefs://lake/trial`
    tools.py        the table, and how a call (calling.py) is checked, carried out and answered
    reading.py      list, read, table, diff, why
    writing.py      write, commit, propose, plan
    tables.py       columns and first rows, read by `table_child.py` in a process of its own
    protocol.py     the table over the protocol; the only file that names the package `mcp`

No tool applies a plan, deletes, or changes who may do what. The texts that tools return are data of other people.
"""

from .asking import ClientOperations, Operations, Value
from .own_sandbox import OPERATIONS, Box, InMemory, OwnSandbox, SandboxEnded, note_of
from .protocol import answer_over_http, is_installed, load, serve_stdio
from .scope import PARSERS_MAX, FixedBranch, NoWrites, Scope, Writers
from .tools import TOOLS
