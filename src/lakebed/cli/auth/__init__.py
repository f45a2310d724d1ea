"""`lakebed auth`: users, groups, policies, and who has which (docs/guide/server.md)."""

from __future__ import annotations

from lakebed.cli.tree import noun

from .groups import app as groups
from .policies import app as policies
from .recover import recover
from .users import app as users

app = noun("Users, groups and policies: who may do what.")
app.add_typer(users, name="users")
app.add_typer(groups, name="groups")
app.add_typer(policies, name="policies")
app.command()(recover)
