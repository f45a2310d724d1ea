"""`lakebed auth`: users, groups, policies, and who has which (docs/guide/server.md)."""

from __future__ import annotations

from .auth_groups import app as groups
from .auth_policies import app as policies
from .auth_users import app as users
from .tree import noun

app = noun("Users, groups and policies: who may do what.")
app.add_typer(users, name="users")
app.add_typer(groups, name="groups")
app.add_typer(policies, name="policies")
