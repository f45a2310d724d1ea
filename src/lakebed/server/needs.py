"""What each route asks of its caller: the table from operation to actions and resources, and the door that holds it.

A route without a row lets nobody in, so none is ever open by oversight; a test finds it. A row is one or more needs,
all of which must be met. The resource is put together from the request: `{repository}` is an argument of
the path, `{query.path}` a parameter, `{body.name}` a field of the JSON body; a field that is a list needs each.

The door stands before the handler: who may not do something does not learn what is there. Nothing is put together for
who may do the action everywhere, which is most callers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec

from lakebed import wire
from lakebed.auth import ACTIONS, NotPermitted, Permissions

from .requests import RestRequest
from .routing import Route

FS: Final = "arn:lakefs:fs:::"
AUTH: Final = "arn:lakefs:auth:::"
ALL: Final = "*"
REPOSITORY: Final = FS + "repository/{repository}"
BRANCH: Final = REPOSITORY + "/branch/{branch}"
REF: Final = REPOSITORY + "/branch/{ref}"
TAG: Final = REPOSITORY + "/tag/{tag}"
OBJECT: Final = REPOSITORY + "/object/{query.path}"
USER: Final = AUTH + "user/{userId}"
GROUP: Final = AUTH + "group/{groupId}"
POLICY: Final = AUTH + "policy/{policyId}"
_PLACE: Final = re.compile(r"\{([A-Za-z_.]+)\}")


@dataclass(frozen=True, slots=True)
class Need:
    """`body` is the record that the body is, where the resource names one of its fields."""

    action: str
    resource: str = REPOSITORY
    body: type[msgspec.Struct] | None = None


Needs: TypeAlias = tuple[Need, ...]

LOGIN: Final[Needs] = ()
"""Whoever is logged in, as a collector with a job's token is not: what a client asks before it asks for anything."""


def _need(action: str, resource: str = REPOSITORY, body: type[msgspec.Struct] | None = None) -> Needs:
    return (Need(action, resource, body),)


_ONE: Final = "/repositories/{repository}"
_ON_BRANCH: Final = _ONE + "/branches/{branch}"
_ON_REF: Final = _ONE + "/refs/{ref}"
_READ_REFS: Final = (Need("fs:ListBranches"), Need("fs:ListTags"), Need("fs:ListCommits"))
_WRITE_REFS: Final = (Need("fs:CreateBranch"), Need("fs:CreateTag"), Need("fs:CreateCommit"))
_READ_FILES: Final = (Need("fs:ReadRepository"), Need("fs:ListObjects"))

INSTALLATION_NEEDS: Final[dict[str, Needs]] = {
    "GET /user": LOGIN,
    "GET /config": LOGIN,
    "GET /config/version": LOGIN,
    "GET /config/storage": LOGIN,
    "GET /config/garbage-collection": LOGIN,
    "POST /statistics": LOGIN,
    "GET /usage-report/summary": LOGIN,
    "GET /oidc/callback": LOGIN,
    "POST /sts/login": LOGIN,
    "POST /auth/external/principal/login": LOGIN,
}

AUTH_NEEDS: Final[dict[str, Needs]] = {
    "GET /auth/users": _need("auth:ListUsers", ALL),
    "POST /auth/users": _need("auth:CreateUser", AUTH + "user/{body.id}", wire.UserCreation),
    "GET /auth/users/{userId}": _need("auth:ReadUser", USER),
    "DELETE /auth/users/{userId}": _need("auth:DeleteUser", USER),
    "GET /auth/users/{userId}/credentials": _need("auth:ListCredentials", USER),
    "POST /auth/users/{userId}/credentials": _need("auth:CreateCredentials", USER),
    "GET /auth/users/{userId}/credentials/{accessKeyId}": _need("auth:ReadCredentials", USER),
    "DELETE /auth/users/{userId}/credentials/{accessKeyId}": _need("auth:DeleteCredentials", USER),
    "GET /auth/users/{userId}/groups": _need("auth:ReadUser", USER),
    "GET /auth/users/{userId}/policies": _need("auth:ReadUser", USER),
    "PUT /auth/users/{userId}/policies/{policyId}": _need("auth:AttachPolicy", USER),
    "DELETE /auth/users/{userId}/policies/{policyId}": _need("auth:DetachPolicy", USER),
    "POST /auth/users/{userId}/external/principals": _need("auth:CreateUserExternalPrincipal", USER),
    "DELETE /auth/users/{userId}/external/principals": _need("auth:DeleteUserExternalPrincipal", USER),
    "GET /auth/users/{userId}/external/principals/ls": _need("auth:ReadUser", USER),
    "GET /auth/external/principals": _need("auth:ReadExternalPrincipal", ALL),
    "GET /auth/groups": _need("auth:ListGroups", ALL),
    "POST /auth/groups": _need("auth:CreateGroup", AUTH + "group/{body.id}", wire.GroupCreation),
    "GET /auth/groups/{groupId}": _need("auth:ReadGroup", GROUP),
    "DELETE /auth/groups/{groupId}": _need("auth:DeleteGroup", GROUP),
    "GET /auth/groups/{groupId}/members": _need("auth:ReadGroup", GROUP),
    "PUT /auth/groups/{groupId}/members/{userId}": _need("auth:AddGroupMember", GROUP),
    "DELETE /auth/groups/{groupId}/members/{userId}": _need("auth:RemoveGroupMember", GROUP),
    "GET /auth/groups/{groupId}/policies": _need("auth:ReadGroup", GROUP),
    "PUT /auth/groups/{groupId}/policies/{policyId}": _need("auth:AttachPolicy", GROUP),
    "DELETE /auth/groups/{groupId}/policies/{policyId}": _need("auth:DetachPolicy", GROUP),
    "GET /auth/groups/{groupId}/acl": _need("auth:ReadGroup", GROUP),
    "POST /auth/groups/{groupId}/acl": _need("auth:AttachPolicy", GROUP),
    "GET /auth/policies": _need("auth:ListPolicies", ALL),
    "POST /auth/policies": _need("auth:CreatePolicy", AUTH + "policy/{body.id}", wire.Policy),
    "GET /auth/policies/{policyId}": _need("auth:ReadPolicy", POLICY),
    "PUT /auth/policies/{policyId}": _need("auth:UpdatePolicy", POLICY),
    "DELETE /auth/policies/{policyId}": _need("auth:DeletePolicy", POLICY),
}

REPOSITORY_NEEDS: Final[dict[str, Needs]] = {
    "GET /repositories": _need("fs:ListRepositories", ALL),
    "POST /repositories": (
        Need("fs:CreateRepository", FS + "repository/{body.name}", wire.RepositoryCreation),
        Need("fs:AttachStorageNamespace", FS + "namespace/{body.storage_namespace}", wire.RepositoryCreation),
    ),
    f"GET {_ONE}": _need("fs:ReadRepository"),
    f"DELETE {_ONE}": _need("fs:DeleteRepository"),
    f"GET {_ONE}/metadata": _need("fs:ReadRepository"),
    f"POST {_ONE}/metadata": _need("fs:UpdateRepository"),
    f"DELETE {_ONE}/metadata": _need("fs:UpdateRepository"),
    f"GET {_ONE}/settings/branch_protection": _need("branches:GetBranchProtectionRules"),
    f"PUT {_ONE}/settings/branch_protection": _need("branches:SetBranchProtectionRules"),
    f"GET {_ONE}/branch_protection": _need("branches:GetBranchProtectionRules"),
    f"POST {_ONE}/branch_protection": _need("branches:SetBranchProtectionRules"),
    f"DELETE {_ONE}/branch_protection": _need("branches:SetBranchProtectionRules"),
    f"GET {_ONE}/branch_protection/set_allowed": _need("branches:SetBranchProtectionRules"),
    f"PUT {_ONE}/refs/dump": _READ_REFS,
    f"PUT {_ONE}/refs/restore": _WRITE_REFS,
    f"POST {_ONE}/dump": _READ_REFS,
    f"GET {_ONE}/dump": _READ_REFS,
    f"POST {_ONE}/restore": _WRITE_REFS,
    f"GET {_ONE}/restore": _WRITE_REFS,
    f"GET {_ONE}/actions/runs": _need("ci:ReadAction"),
    f"GET {_ONE}/actions/runs/{{run_id}}": _need("ci:ReadAction"),
    f"GET {_ONE}/actions/runs/{{run_id}}/hooks": _need("ci:ReadAction"),
    f"GET {_ONE}/actions/runs/{{run_id}}/hooks/{{hook_run_id}}/output": _need("ci:ReadAction"),
    f"GET {_ONE}/pulls": _need("pr:ListPullRequests"),
    f"POST {_ONE}/pulls": _need("pr:WritePullRequest"),
    f"GET {_ONE}/pulls/{{pull_request}}": _need("pr:ReadPullRequest"),
    f"PATCH {_ONE}/pulls/{{pull_request}}": _need("pr:WritePullRequest"),
    f"PUT {_ONE}/pulls/{{pull_request}}/merge": _need("pr:WritePullRequest"),
    f"GET {_ONE}/metadata/meta_range/{{meta_range}}": _READ_FILES,
    f"GET {_ONE}/metadata/range/{{range}}": _READ_FILES,
    f"GET {_ONE}/metadata/object/{{type}}/{{object_id}}": _READ_FILES,
}

HISTORY_NEEDS: Final[dict[str, Needs]] = {
    f"GET {_ONE}/branches": _need("fs:ListBranches"),
    f"POST {_ONE}/branches": _need("fs:CreateBranch", REPOSITORY + "/branch/{body.name}", wire.BranchCreation),
    f"GET {_ON_BRANCH}": _need("fs:ReadBranch", BRANCH),
    f"DELETE {_ON_BRANCH}": _need("fs:DeleteBranch", BRANCH),
    f"PUT {_ON_BRANCH}": _need("fs:RevertBranch", BRANCH),
    f"PUT {_ON_BRANCH}/hard_reset": _need("fs:RevertBranch", BRANCH),
    f"POST {_ON_BRANCH}/revert": _need("fs:RevertBranch", BRANCH),
    f"POST {_ON_BRANCH}/cherry-pick": (Need("fs:CreateCommit", BRANCH), Need("fs:ReadCommit")),
    f"POST {_ON_BRANCH}/commits": _need("fs:CreateCommit", BRANCH),
    f"GET {_ON_BRANCH}/diff": _need("fs:ListObjects"),
    f"GET {_ONE}/tags": _need("fs:ListTags"),
    f"POST {_ONE}/tags": _need("fs:CreateTag", REPOSITORY + "/tag/{body.id}", wire.TagCreation),
    f"GET {_ONE}/tags/{{tag}}": _need("fs:ReadTag", TAG),
    f"DELETE {_ONE}/tags/{{tag}}": _need("fs:DeleteTag", TAG),
    f"GET {_ONE}/commits/{{commitId}}": _need("fs:ReadCommit"),
    f"POST {_ONE}/commits": _need("fs:CreateCommit"),
    f"GET {_ON_REF}/commits": _need("fs:ReadBranch", REF),
    f"GET {_ONE}/refs/{{leftRef}}/diff/{{rightRef}}": _need("fs:ListObjects"),
    f"POST {_ONE}/refs/{{sourceRef}}/merge/{{destinationBranch}}": _need(
        "fs:CreateCommit", REPOSITORY + "/branch/{destinationBranch}"
    ),
    f"GET {_ONE}/refs/{{sourceRef}}/merge/{{destinationBranch}}": _need("fs:ListCommits"),
}

OBJECT_NEEDS: Final[dict[str, Needs]] = {
    f"GET {_ON_REF}/objects": _need("fs:ReadObject", OBJECT),
    f"HEAD {_ON_REF}/objects": _need("fs:ReadObject", OBJECT),
    f"GET {_ON_REF}/objects/stat": _need("fs:ReadObject", OBJECT),
    f"GET {_ON_REF}/objects/underlyingProperties": _need("fs:ReadObject", OBJECT),
    f"GET {_ON_REF}/objects/ls": _need("fs:ListObjects"),
    f"GET {_ON_BRANCH}/objects/stage_allowed": _need("fs:WriteObject", OBJECT),
    f"POST {_ON_BRANCH}/objects": _need("fs:WriteObject", OBJECT),
    f"PUT {_ON_BRANCH}/objects": (
        Need("fs:WriteObject", OBJECT),
        Need("fs:ImportFromStorage", FS + "namespace/{body.physical_address}", wire.ObjectStageCreation),
    ),
    f"PUT {_ON_BRANCH}/objects/stat/user_metadata": _need("fs:WriteObject", OBJECT),
    f"DELETE {_ON_BRANCH}/objects": _need("fs:DeleteObject", OBJECT),
    f"POST {_ON_BRANCH}/objects/delete": _need("fs:DeleteObject", REPOSITORY + "/object/{body.paths}", wire.PathList),
    f"POST {_ON_BRANCH}/objects/copy": (
        Need("fs:ReadObject", REPOSITORY + "/object/{body.src_path}", wire.ObjectCopyCreation),
        Need("fs:WriteObject", REPOSITORY + "/object/{query.dest_path}"),
    ),
    f"GET {_ON_BRANCH}/staging/backing": _need("fs:WriteObject", OBJECT),
    f"PUT {_ON_BRANCH}/staging/backing": _need("fs:WriteObject", OBJECT),
    f"POST {_ON_BRANCH}/staging/pmpu": _need("fs:WriteObject", OBJECT),
    f"PUT {_ON_BRANCH}/staging/pmpu/{{uploadId}}": _need("fs:WriteObject", OBJECT),
    f"DELETE {_ON_BRANCH}/staging/pmpu/{{uploadId}}": _need("fs:WriteObject", OBJECT),
    f"PUT {_ON_BRANCH}/staging/pmpu/{{uploadId}}/parts/{{partNumber}}": _need("fs:WriteObject", OBJECT),
    f"PUT {_ON_BRANCH}/staging/pmpu/{{uploadId}}/parts/{{partNumber}}/copy": _need("fs:WriteObject", OBJECT),
    f"GET {_ON_BRANCH}/import": _need("fs:ReadBranch", BRANCH),
    f"POST {_ON_BRANCH}/import": (Need("fs:ImportFromStorage", ALL), Need("fs:CreateCommit", BRANCH)),
    f"DELETE {_ON_BRANCH}/import": _need("fs:ImportCancel", BRANCH),
    f"POST {_ONE}/refs/{{branch}}/symlink": _need("fs:WriteObject", BRANCH),
}

GC_NEEDS: Final[dict[str, Needs]] = {
    f"GET {_ONE}/settings/gc_rules": _need("retention:GetGarbageCollectionRules"),
    f"PUT {_ONE}/settings/gc_rules": _need("retention:SetGarbageCollectionRules"),
    f"DELETE {_ONE}/settings/gc_rules": _need("retention:SetGarbageCollectionRules"),
    f"GET {_ONE}/gc/rules": _need("retention:GetGarbageCollectionRules"),
    f"POST {_ONE}/gc/rules": _need("retention:SetGarbageCollectionRules"),
    f"DELETE {_ONE}/gc/rules": _need("retention:SetGarbageCollectionRules"),
    f"GET {_ONE}/gc/rules/set_allowed": _need("retention:SetGarbageCollectionRules"),
    f"GET {_ONE}/gc/rules/full": _need("gc:ReadRules"),
    f"PUT {_ONE}/gc/rules/full": _need("gc:WriteRules"),
    f"DELETE {_ONE}/gc/rules/full": _need("gc:WriteRules"),
    f"GET {_ONE}/gc/rules/history": _need("gc:ReadRules"),
    f"GET {_ONE}/gc/rules/explain": _need("gc:ReadRules"),
    f"POST {_ONE}/gc/prepare_commits": _need("retention:PrepareGarbageCollectionCommits"),
    f"POST {_ONE}/gc/prepare_commits/async": _need("retention:PrepareGarbageCollectionCommits"),
    f"GET {_ONE}/gc/prepare_commits/status": _need("retention:PrepareGarbageCollectionCommits"),
    f"POST {_ONE}/gc/prepare_uncommited": _need("retention:PrepareGarbageCollectionUncommitted"),
    f"GET {_ONE}/gc/runs": _need("gc:ReadRuns"),
    f"POST {_ONE}/gc/runs": _need("gc:Plan"),
    f"GET {_ONE}/gc/runs/{{run_id}}": _need("gc:ReadRuns"),
    f"POST {_ONE}/gc/runs/{{run_id}}/uncommitted": _need("gc:Plan"),
    f"POST {_ONE}/gc/runs/{{run_id}}/commits": _need("gc:Plan"),
    f"POST {_ONE}/gc/runs/{{run_id}}/marked": _need("gc:Plan"),
    f"POST {_ONE}/gc/planning": _need("gc:Plan"),
    f"POST {_ONE}/gc/adopting": _need("gc:Adopt"),
    f"POST {_ONE}/gc/purging": _need("gc:Apply"),
    f"POST {_ONE}/gc/runs/{{run_id}}/applying": _need("gc:Apply"),
    f"POST {_ONE}/gc/runs/{{run_id}}/condemn": _need("gc:Apply"),
    f"POST {_ONE}/gc/runs/{{run_id}}/give-up": _need("gc:Apply"),
    f"POST {_ONE}/gc/runs/{{run_id}}/sweeping": _need("gc:Apply"),
    f"POST {_ONE}/gc/runs/{{run_id}}/ended": _need("gc:Apply"),
    f"POST {_ONE}/gc/runs/{{run_id}}/abandoned": _need("gc:Abandon"),
    f"GET {_ONE}/gc/why": _need("gc:Explain"),
    f"GET {_ONE}/gc/plans": _need("gc:ReadRuns"),
    f"GET {_ONE}/gc/plans/{{run_id}}": _need("gc:ReadRuns"),
    f"GET {_ONE}/gc/plans/{{run_id}}/objects": _need("gc:ReadRuns"),
    f"GET {_ONE}/gc/plans/{{run_id}}/diff/{{other_run_id}}": _need("gc:ReadRuns"),
    f"GET {_ONE}/gc/jobs": _need("gc:ReadRuns"),
    f"POST {_ONE}/gc/jobs": _need("gc:ReadRuns"),  # and gc:Plan or gc:Apply, by what is asked for: rest/gc_jobs.py
    f"GET {_ONE}/gc/jobs/{{job_id}}": _need("gc:ReadRuns"),
    f"DELETE {_ONE}/gc/jobs/{{job_id}}": _need("gc:Abandon"),
    f"GET {_ONE}/gc/ledger": _need("gc:ReadLedger"),
    f"POST {_ONE}/gc/restore": _need("gc:Restore"),  # and, of each object, fs:WriteObject: rest/gc_restore.py
}

NEEDS: Final = INSTALLATION_NEEDS | AUTH_NEEDS | REPOSITORY_NEEDS | HISTORY_NEEDS | OBJECT_NEEDS | GC_NEEDS


def guarded(route: Route) -> Route:
    """The route with its gate: none where it is public, or where the table has no row for it."""
    needs = NEEDS.get(f"{route.method} {route.path}")
    return route if route.is_public or needs is None else replace(route, gate=Gate(route.path, needs))


class Gate:
    """What one route needs, made once when the server starts."""

    def __init__(self, path: str, needs: Needs) -> None:
        arguments = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
        for need in needs:
            assert need.action in ACTIONS, need
        self._needs = [(need, _Resource(need.resource, arguments)) for need in needs]

    async def admit(self, request: RestRequest, permissions: Permissions) -> None:
        """
        Raises:
            NotPermitted: one of the needs is not met.
            InvalidBody: the resource is named in the body, and the body is not what it should be.
        """
        if not self._needs and request.identity.delegation is not None:
            raise NotPermitted("insufficient permissions: the token of a job is no login")
        for need, resource in self._needs:
            if permissions.allows_everywhere(need.action):
                continue
            body = None if need.body is None else await request.decoded(need.body)
            for arn in resource.of(request, body):
                permissions.require(need.action, arn)


class _Resource:
    """A template, cut into text and places."""

    def __init__(self, template: str, arguments: Sequence[str]) -> None:
        pieces = _PLACE.split(template)
        self._texts = pieces[::2]
        self._places = [_place(name, arguments) for name in pieces[1::2]]

    def of(self, request: RestRequest, body: object) -> list[str]:
        arns = [self._texts[0]]
        for place, text in zip(self._places, self._texts[1:], strict=True):
            values = place(request, body)
            arns = [arn + value + text for value in ([values] if isinstance(values, str) else values) for arn in arns]
        return arns


_Place: TypeAlias = Callable[[RestRequest, Any], "str | list[str]"]


def _place(name: str, arguments: Sequence[str]) -> _Place:
    source, _, field = name.partition(".")
    if source == "query":
        return lambda request, _: request.query(field)
    if source == "body":
        return lambda _, body: getattr(body, field)
    index = arguments.index(name)
    return lambda request, _: request.args[index]
