"""The part of a user's permissions that one job gets.

The server gives a collector that it runs a token of the user who started it (`lakebed.server`, collectors.py). Such a
token allows a few actions on one repository, and only while the job runs. Each request checks the user's permissions
too, so the job never may do more than the user may by then. It is no login: operations that need one refuse it.
"""

from __future__ import annotations

import msgspec


class Delegation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Allow `actions`, by their full names, on `repository` itself and nothing in it, while its job `job` runs.

    `on_branches` are allowed on each of its branches, and on nothing else.
    `deleted` is the uid of the repository where it is deleted.
    """

    job: str
    repository: str
    actions: tuple[str, ...]
    deleted: str = ""
    on_branches: tuple[str, ...] = ()

    def covers(self, action: str, resource: str) -> bool:
        repository = f"arn:lakefs:fs:::repository/{self.repository}"
        if action in self.actions and resource == repository:
            return True
        return action in self.on_branches and resource.startswith(f"{repository}/branch/")

    def covers_below(self, action: str, beginning: str) -> bool:
        """Return whether it covers a resource that begins so."""
        repository = f"arn:lakefs:fs:::repository/{self.repository}"
        branches = f"{repository}/branch/"
        if action in self.actions and repository.startswith(beginning):
            return True
        return action in self.on_branches and (branches.startswith(beginning) or beginning.startswith(branches))
