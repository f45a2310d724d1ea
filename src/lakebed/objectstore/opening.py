"""Storage namespaces as URIs: their one spelling, and the store behind each.

    mem://name                 in memory; the same name is the same store in the whole process
    local://bucket/path        the folder bucket/path below `ObjectStoreOptions.local_root`
    local:///absolute/path     that folder, if `allow_absolute_local`; never one below local_root, or above it
    s3://bucket/prefix         keys that begin with prefix/

Nothing here reads the environment: a composition root does, and passes `options_from_environment(os.environ)`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from .drivers.memory import MemoryDeleter, MemoryObjectStore
from .keys import is_object_key
from .store import Deleter, InvalidNamespace, ObjectStore

KNOWN: Final = "known are mem://name, local://bucket/path and s3://bucket/prefix"

_BUCKET: Final = {
    "mem": re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"),
    "local": re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"),
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}"),
}
_AMBIGUOUS: Final = re.compile(r"[?#\\\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreOptions:
    """What a URI leaves open. It can be sent to workers, so it holds plain values; secrets are left out of its repr.

    Without `s3_access_key_id` the credentials come from where AWS's tools look for them.
    `s3_endpoint` is any S3-compatible service, addressed by path unless `s3_virtual_hosted`; one that begins with
    `http://` is used without TLS.
    """

    local_root: Path | None = None
    allow_absolute_local: bool = False
    local_durable: bool = True
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: str | None = field(default=None, repr=False)
    s3_session_token: str | None = field(default=None, repr=False)
    s3_virtual_hosted: bool = False
    s3_timeout_s: float = 60.0
    s3_retries_max: int = 5


def options_from_environment(environment: Mapping[str, str]) -> ObjectStoreOptions:
    """LAKEBED_BLOCKS_LOCAL_ROOT, LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL (`1`), LAKEBED_S3_ENDPOINT, LAKEBED_S3_REGION,
    LAKEBED_S3_ACCESS_KEY_ID, LAKEBED_S3_SECRET_ACCESS_KEY, LAKEBED_S3_SESSION_TOKEN, LAKEBED_S3_VIRTUAL_HOSTED (`1`);
    where one for S3 is missing, AWS's own (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION,
    AWS_ACCESS_KEY_ID, …). The credentials are taken together, from one of the two families.
    """

    def first(*names: str) -> str | None:
        return next((value for name in names if (value := environment.get(name))), None)

    family = "LAKEBED_S3_" if environment.get("LAKEBED_S3_ACCESS_KEY_ID") else "AWS_"
    root = first("LAKEBED_BLOCKS_LOCAL_ROOT")
    return ObjectStoreOptions(
        local_root=Path(root) if root else None,
        allow_absolute_local=first("LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL") == "1",
        s3_endpoint=first("LAKEBED_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        s3_region=first("LAKEBED_S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"),
        s3_access_key_id=first(family + "ACCESS_KEY_ID"),
        s3_secret_access_key=first(family + "SECRET_ACCESS_KEY"),
        s3_session_token=first(family + "SESSION_TOKEN"),
        s3_virtual_hosted=first("LAKEBED_S3_VIRTUAL_HOSTED") == "1",
    )


def environment_of(options: ObjectStoreOptions) -> dict[str, str]:
    """The variables from which `options_from_environment` makes these options again, in another process. What they
    leave open is left out, and so are timeouts and retries."""
    values = {
        "LAKEBED_BLOCKS_LOCAL_ROOT": options.local_root and str(options.local_root),
        "LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL": "1" if options.allow_absolute_local else None,
        "LAKEBED_S3_ENDPOINT": options.s3_endpoint,
        "LAKEBED_S3_REGION": options.s3_region,
        "LAKEBED_S3_ACCESS_KEY_ID": options.s3_access_key_id,
        "LAKEBED_S3_SECRET_ACCESS_KEY": options.s3_secret_access_key,
        "LAKEBED_S3_SESSION_TOKEN": options.s3_session_token,
        "LAKEBED_S3_VIRTUAL_HOSTED": "1" if options.s3_virtual_hosted else None,
    }
    return {name: value for name, value in values.items() if value}


def open_objectstore(uri: str, options: ObjectStoreOptions = ObjectStoreOptions()) -> ObjectStore:
    """The store of a namespace. Nothing is read or written: a folder is made by its first put, a bucket never.

    Raises:
        InvalidNamespace: the URI is malformed, or these options do not allow it.
    """
    scheme, bucket, path = _parse(uri)
    normal = _format(scheme, bucket, path)
    if scheme == "mem":
        return _memory(normal)
    if scheme == "local":
        from .drivers.local import LocalObjectStore  # here, since it needs fcntl, which not every system has

        base, inside = _folder_of(normal, bucket, path, options)
        return LocalObjectStore(normal, base, inside, durable=options.local_durable)
    from .drivers.s3 import S3ObjectStore  # here, since loading obstore takes long, and many processes never need it

    return S3ObjectStore(normal, bucket, path, options)


def open_deleter(uri: str, options: ObjectStoreOptions = ObjectStoreOptions()) -> Deleter:
    """Return the right to delete from the namespace that `open_objectstore` opens with these arguments.

    Only a composition root calls this; tests/tidy/test_layers.py lists them.

    Raises:
        InvalidNamespace: the URI is malformed, or these options do not allow it.
    """
    scheme, bucket, path = _parse(uri)
    normal = _format(scheme, bucket, path)
    if scheme == "mem":
        return MemoryDeleter(_memory(normal))
    if scheme == "local":
        from .drivers.local import LocalDeleter

        base, inside = _folder_of(normal, bucket, path, options)
        return LocalDeleter(normal, base, inside, durable=options.local_durable)
    from .drivers.s3 import S3Deleter

    return S3Deleter(normal, bucket, path, options)


def normalise_namespace(uri: str) -> str:
    """The one spelling of a namespace: scheme in lower case, no slash at its end. Two namespaces are the same place if
    and only if these are equal.

    Raises:
        InvalidNamespace: it is malformed, or of a scheme not known here.
    """
    return _format(*_parse(uri))


def namespaces_overlap(one: str, other: str) -> bool:
    """Whether both are the same place, or one lies inside the other: then neither may be given to a second repository.

    Raises:
        InvalidNamespace: one of them is malformed.
    """
    one, other = normalise_namespace(one) + "/", normalise_namespace(other) + "/"
    return one.startswith(other) or other.startswith(one)


def _parse(uri: str) -> tuple[str, str, str]:
    scheme, separator, rest = uri.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _BUCKET:
        raise _invalid(uri, KNOWN)
    bucket, _, path = rest.partition("/")
    path = path.rstrip("/")
    if not _BUCKET[scheme].fullmatch(bucket):
        raise _invalid(uri, f"{bucket!r} is no name for what comes after {scheme}://")
    if _AMBIGUOUS.search(path) or (path and not is_object_key(path)):
        raise _invalid(uri, "its path has empty, dotted or over-long segments, or characters of no good here")
    if not bucket and not path:
        raise _invalid(uri, KNOWN)
    return scheme, bucket, path


def _format(scheme: str, bucket: str, path: str) -> str:
    return f"{scheme}://{bucket}/{path}" if path else f"{scheme}://{bucket}"


def _folder_of(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> tuple[Path, tuple[str, ...]]:
    """Return the operator's folder, and the segments below it that no symbolic link may stand for."""
    root = options.local_root
    if bucket:
        if root is None:
            raise _invalid(uri, "no root folder for local:// is configured")
        return root, (bucket, *path.split("/")) if path else (bucket,)
    folder = Path("/", path).resolve()
    if not options.allow_absolute_local:
        raise _invalid(uri, "absolute local folders are not allowed here")
    if root is not None and (folder.is_relative_to(root.resolve()) or root.resolve().is_relative_to(folder)):
        raise _invalid(uri, "it overlaps the root folder of local://bucket, which would give a place two names")
    return folder, ()


@cache
def _memory(uri: str) -> MemoryObjectStore:
    return MemoryObjectStore(uri)


def _invalid(uri: str, reason: str) -> InvalidNamespace:
    return InvalidNamespace(f"storage namespace {uri[:200]!a}: {reason}", uri=uri)
