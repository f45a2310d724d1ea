"""Storage namespaces as URIs: their normal form, and the store of each.

mem://name                 in memory; the same name is the same store in the whole process
local://bucket/path        the folder bucket/path below `ObjectStoreOptions.local_root`
local:///absolute/path     that folder, if `allow_absolute_local`; never one below local_root, or above it
s3://bucket/prefix         keys that begin with prefix/
gs://bucket/prefix         the same, in Google Cloud Storage
az://container/prefix      the same, in Azure Blob Storage, in the account of the options
https://ACCOUNT.blob.core.windows.net/container/prefix     the same as az://, spelled as other clients do
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from .arguments import is_object_key
from .drivers.memory import MemoryDeleter, MemoryObjectStore
from .options import ObjectStoreOptions
from .store import Deleter, InvalidNamespace, ObjectStore

__all__ = ["normalise_namespace", "open_deleter", "open_objectstore", "split_address", "without_account"]


KNOWN: Final = (
    "known are mem://name, local://bucket/path, s3://bucket/prefix, gs://bucket/prefix and az://container/prefix"
)

ABSOLUTE: Final = (
    "absolute folders are not allowed here: name one below the server's folder of objects, as local://bucket/path"
    " (LAKEBED_BLOCKS_ALLOW_ABSOLUTE_LOCAL=1 allows others)"
)

_BELOW: Final = (
    "name objects below the server's folder of objects (DATA/objects, or LAKEBED_BLOCKS_LOCAL_ROOT) as local://folder/path."
    " None elsewhere can be named: copy the files there, or upload them with `lakebed object upload -r`"
)

_BUCKET: Final = {
    "mem": re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"),
    "local": re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"),
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"[a-z0-9](?!.*--)[a-z0-9-]{1,61}[a-z0-9]"),
}
_AZURE_URL: Final = re.compile(
    r"\Ahttps://([a-z0-9]{3,24})\.blob\.core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)/", re.IGNORECASE
)
_AMBIGUOUS: Final = re.compile(r"[?#\\\s]")


def open_objectstore(uri: str, options: ObjectStoreOptions = ObjectStoreOptions()) -> ObjectStore:
    """Return the store of a namespace.

    Reads and writes nothing: the first put makes a folder, and no call makes a bucket.

    Raises:
        InvalidNamespace: the URI is malformed, or these options do not allow it.
    """
    scheme, bucket, path = _parse(uri)
    _check_account(uri, options)
    normal = _format(scheme, bucket, path)
    if scheme == "mem":
        return _memory(normal)
    if scheme == "local":
        from .drivers.local import LocalObjectStore  # here, since it needs fcntl, which some systems lack

        base, inside = _folder_of(normal, bucket, path, options)
        return LocalObjectStore(normal, base, inside, durable=options.local_durable)
    # Here, since loading obstore takes long, and many processes never need it.
    match scheme:
        case "az":
            from .drivers.azure import open_bucket
        case "gs":
            from .drivers.gcs import open_bucket
        case _:
            from .drivers.s3 import open_bucket
    return open_bucket(normal, bucket, path, options)


def open_deleter(uri: str, options: ObjectStoreOptions = ObjectStoreOptions()) -> Deleter:
    """Return the right to delete from the namespace that `open_objectstore` opens with these arguments.

    Only a composition root calls this; tests/tidy/test_layers.py lists them.

    Raises:
        InvalidNamespace: the URI is malformed, or these options do not allow it.
    """
    scheme, bucket, path = _parse(uri)
    _check_account(uri, options)
    normal = _format(scheme, bucket, path)
    if scheme == "mem":
        return MemoryDeleter(_memory(normal))
    if scheme == "local":
        from .drivers.local import LocalDeleter

        base, inside = _folder_of(normal, bucket, path, options)
        return LocalDeleter(normal, base, inside, durable=options.local_durable)
    match scheme:
        case "az":
            from .drivers.azure import open_bucket_deleter
        case "gs":
            from .drivers.gcs import open_bucket_deleter
        case _:
            from .drivers.s3 import open_bucket_deleter
    return open_bucket_deleter(normal, bucket, path, options)


def normalise_namespace(uri: str) -> str:
    """Return the normal form of a namespace: scheme in lower case, no slash at its end.

    Two namespaces are the same if and only if their normal forms are equal.

    Raises:
        InvalidNamespace: the URI is malformed, or has an unknown scheme.
    """
    return _format(*_parse(uri))


def split_address(address: str) -> tuple[str, str]:
    """Split an object's full URI into the bucket or container, as `open_objectstore` takes it, and the object's key.

    Raises:
        InvalidNamespace: an Azure URL has escapes, a query or a fragment, so its key is in doubt; or the URI is an
            absolute path of the server's machine.
    """
    found = _AZURE_URL.match(address)
    begin = found[0] if found else "".join(address.partition("://")[:2])
    bucket, _, key = address[len(begin) :].partition("/")
    if begin.lower() == "local://" and not bucket:
        raise _invalid(address, _BELOW)
    if found and re.search("[%?#]", key):
        raise _invalid(address, "a URL with escapes, a query or a fragment: write az://container/key")
    return begin + bucket, key


def without_account(uri: str) -> str:
    """Spell an Azure URL as `az://`, for comparisons that refuse. Drops the account."""
    return _AZURE_URL.sub("az://", uri)


def _parse(uri: str) -> tuple[str, str, str]:
    scheme, separator, rest = without_account(uri).partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _BUCKET:
        raise _invalid(uri, KNOWN)
    bucket, _, path = rest.partition("/")
    path = path.rstrip("/")
    if not _BUCKET[scheme].fullmatch(bucket):
        raise _invalid(uri, f"{bucket!r} is not a valid name after {scheme}://")
    if _AMBIGUOUS.search(path) or (path and not is_object_key(path)):
        raise _invalid(uri, "its path has empty, dotted or over-long segments, or characters that are not allowed here")
    if not bucket and not path:
        raise _invalid(uri, KNOWN)
    return scheme, bucket, path


def _check_account(uri: str, options: ObjectStoreOptions) -> None:
    """Refuse a URL with another account than that of the options."""
    found = _AZURE_URL.match(uri)
    if found and found[1].lower() != options.azure_account:
        raise _invalid(uri, f"the account here is {options.azure_account or 'not named by LAKEBED_AZURE_ACCOUNT'}")


def _format(scheme: str, bucket: str, path: str) -> str:
    return f"{scheme}://{bucket}/{path}" if path else f"{scheme}://{bucket}"


def _folder_of(uri: str, bucket: str, path: str, options: ObjectStoreOptions) -> tuple[Path, tuple[str, ...]]:
    """Return the operator's folder, and the segments below it that must not be symbolic links."""
    root = options.local_root
    if bucket:
        if root is None:
            raise _invalid(uri, "no root folder for local:// is configured")
        return root, (bucket, *path.split("/")) if path else (bucket,)
    folder = Path("/", path).resolve()
    if not options.allow_absolute_local:
        raise _invalid(uri, ABSOLUTE)
    if root is not None and (folder.is_relative_to(root.resolve()) or root.resolve().is_relative_to(folder)):
        raise _invalid(uri, "it overlaps the root folder of local://bucket, which would give a place two names")
    return folder, ()


@cache
def _memory(uri: str) -> MemoryObjectStore:
    return MemoryObjectStore(uri)


def _invalid(uri: str, reason: str) -> InvalidNamespace:
    return InvalidNamespace(f"storage namespace {uri[:200]!a}: {reason}", uri=uri)
