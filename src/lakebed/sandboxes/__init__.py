"""Sandboxes: a branch with an end, and a key pair that may read its source and write nothing but the branch.

Design: docs/design/0013-sandboxes.md. The record, and how its user gets rights: `lakebed.auth`.
"""

from .agents import Agents
from .life import Sandboxes, SandboxNotFound, is_current, source_of
