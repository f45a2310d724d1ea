"""The resources of permissions, and the paths that operations share."""

from __future__ import annotations

from typing import Final

from .operation import At, Permission

_FS: Final = "arn:lakefs:fs:::"
_AUTH: Final = "arn:lakefs:auth:::"

ALL: Final = "*"
REPOSITORY: Final = _FS + "repository/{repository}"
NEW_REPOSITORY: Final = _FS + "repository/{name}"
NAMESPACE: Final = _FS + "namespace/{storage_namespace}"
PHYSICAL_ADDRESS: Final = _FS + "namespace/{physical_address}"
SOURCE: Final = _FS + "namespace/{source}"
BRANCH: Final = REPOSITORY + "/branch/{branch}"
NEW_BRANCH: Final = REPOSITORY + "/branch/{name}"
DESTINATION: Final = REPOSITORY + "/branch/{destinationBranch}"
REF: Final = REPOSITORY + "/branch/{ref}"
TAG: Final = REPOSITORY + "/tag/{tag}"
NEW_TAG: Final = REPOSITORY + "/tag/{id}"
OBJECT: Final = REPOSITORY + "/object/{path}"
OBJECTS: Final = REPOSITORY + "/object/{paths}"
SOURCE_OBJECT: Final = REPOSITORY + "/object/{src_path}"
COPIED_OBJECT: Final = REPOSITORY + "/object/{dest_path}"
IMPORTED_OBJECT: Final = REPOSITORY + "/object/{destination}"
SOURCE_BRANCH: Final = REPOSITORY + "/branch/{ref}"
SOURCE_TAG: Final = REPOSITORY + "/tag/{ref}"
USER: Final = _AUTH + "user/{userId}"
NEW_USER: Final = _AUTH + "user/{id}"
GROUP: Final = _AUTH + "group/{groupId}"
NEW_GROUP: Final = _AUTH + "group/{id}"
POLICY: Final = _AUTH + "policy/{policyId}"
NEW_POLICY: Final = _AUTH + "policy/{id}"

ONE_REPOSITORY: Final = "/repositories/{repository}"
ONE_BRANCH: Final = ONE_REPOSITORY + "/branches/{branch}"
ONE_REF: Final = ONE_REPOSITORY + "/refs/{ref}"


def on(resource: str, *actions: str, at: tuple[At, ...] = ()) -> tuple[Permission, ...]:
    """Ask for each of the actions on one resource."""
    return tuple(Permission(action, resource, *at) for action in actions)
