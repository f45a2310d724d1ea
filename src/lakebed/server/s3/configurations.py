"""Settings of buckets and objects that this gateway never has: reads return S3's default.

Programs read them before they copy, list or back up. A setting that is always in force is returned. A setting for
which S3 returns a named 404 by default returns that error. Writes of all of them are refused by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from starlette.responses import Response

from . import operations
from .buckets import OWNER_ELEMENT, Buckets, xml
from .documents import Element
from .errors import S3Error
from .objects import Objects
from .operations import S3Operation
from .requests.requests import OWNER, S3Request

_OWNER_ID: Final = f"<ID>{OWNER}</ID><DisplayName>{OWNER}</DisplayName>"
_GRANTEE: Final = (
    f'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">{_OWNER_ID}</Grantee>'
)
# The installation owns all objects, and policies define who may use them.
_ACL: Final = (
    Element("AccessControlPolicy")
    .add(OWNER_ELEMENT)
    .markup([f"<AccessControlList><Grant>{_GRANTEE}<Permission>FULL_CONTROL</Permission></Grant></AccessControlList>"])
)
_PRIVATE: Final = Element("PublicAccessBlockConfiguration")
for _name in ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"):
    _PRIVATE.flag(_name, value=True)

OF_BUCKETS: Final[Mapping[str, Element | str]] = {
    "accelerate": Element("AccelerateConfiguration"),
    "acl": _ACL,
    "cors": "NoSuchCORSConfiguration",
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "logging": Element("BucketLoggingStatus"),
    "notification": Element("NotificationConfiguration"),
    "object-lock": "ObjectLockConfigurationNotFoundError",
    "ownershipControls": Element("OwnershipControls").add(
        Element("Rule").text("ObjectOwnership", "BucketOwnerEnforced")
    ),
    "policy": "NoSuchBucketPolicy",
    "policyStatus": "NoSuchBucketPolicy",
    "publicAccessBlock": _PRIVATE,
    "replication": "ReplicationConfigurationNotFoundError",
    "requestPayment": Element("RequestPaymentConfiguration").text("Payer", "BucketOwner"),
    "tagging": "NoSuchTagSet",
    "versioning": Element("VersioningConfiguration"),  # Never enabled: commits keep the versions here.
    "website": "NoSuchWebsiteConfiguration",
}
"""The answer by sub-resource: a document, or the code of an error."""
OF_OBJECTS: Final[Mapping[str, Element | str]] = {
    "acl": _ACL,
    "legal-hold": "NoSuchObjectLockConfiguration",
    "retention": "NoSuchObjectLockConfiguration",
    "tagging": Element("Tagging").add(Element("TagSet")),
}


class Configurations:
    def __init__(self, buckets: Buckets, objects: Objects) -> None:
        self._buckets = buckets
        self._objects = objects
        self.handlers: Mapping[S3Operation, Callable[[S3Request], Awaitable[Response]]] = {
            **{
                operations.BUCKET_SETTINGS[name]: partial(self._of_bucket, setting)
                for name, setting in OF_BUCKETS.items()
            },
            **{
                operations.OBJECT_SETTINGS[name]: partial(self._of_object, setting)
                for name, setting in OF_OBJECTS.items()
            },
        }

    async def _of_bucket(self, setting: Element | str, request: S3Request) -> Response:
        await self._buckets.check(request)
        return _answer(setting)

    async def _of_object(self, setting: Element | str, request: S3Request) -> Response:
        await self._objects.find_asked(request)
        return _answer(setting)


def _answer(setting: Element | str) -> Response:
    if isinstance(setting, Element):
        return xml(setting)
    raise S3Error(setting)
