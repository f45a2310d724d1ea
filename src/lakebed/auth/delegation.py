"""What a user lets a process do that does one errand for them, and should be able to do no other.

The server gives a collector that it runs a token of whoever asked (`lakebed.server`, collectors.py). Such a token is
good for a few actions on one repository, and no longer than the job. The user is asked for as well at each request, so
it never may more than they may by then. It is no login: nothing that asks for one is open to it.
"""

from __future__ import annotations

import msgspec


class Delegation(msgspec.Struct, frozen=True, kw_only=True):
    """`actions` by their full names, on `repository` itself and nothing in it, while job `job` of it runs."""

    job: str
    repository: str
    actions: tuple[str, ...]

    def covers(self, action: str, resource: str) -> bool:
        return action in self.actions and resource == f"arn:lakefs:fs:::repository/{self.repository}"
