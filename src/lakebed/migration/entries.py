"""Convert an object of the source to an entry here: its address, its metadata, and the checks before a commit names it.

The source's local store names objects by absolute folders of its machine (`local:///old-root/repo/data/…`). Here their
addresses are `local://repo/data/…`, once the operator names that root folder. The source's S3 gateway keeps the
header's prefix in the names of metadata (`X-Amz-Meta-Foo`), so S3 clients would see the prefix twice.
"""

from __future__ import annotations

from typing import Final

from lakebed.base import CONTENT_TYPE_DEFAULT, Entry, Invalid, NotFound, is_absolute, is_inside, key_inside
from lakebed.catalog import Catalog
from lakebed.objectstore import ObjectMissing, without_account
from lakebed.wire import ObjectStats

LOCAL_ROOT: Final = "local:///"
S3_NAME: Final = "x-amz-meta-"


class Entries:
    """Makes entries of one repository's objects. `old_root`: the folder of the source's local store, or empty.

    `is_in_place`: the repository here has the source's namespace, so addresses in it become keys.
    """

    def __init__(self, catalog: Catalog, namespace: str, *, old_root: str = "", is_in_place: bool = False) -> None:
        self._catalog = catalog
        self.is_in_place = is_in_place
        self._old_root = LOCAL_ROOT + old_root.strip("/") + "/" if old_root.strip("/") else ""
        self.namespace = self.address_of(namespace.rstrip("/"))
        self._checked: set[str] = set()

    def address_of(self, theirs: str) -> str:
        """Return this server's spelling of an address.

        Raises:
            Invalid: the address is in a folder of the old server's machine, and not below `old_root`; or it is a URL of
                another account of Azure than this server's.
        """
        if (spelled := without_account(theirs)) != theirs:
            # Only the URL names the account, so `locate` checks it before the name is lost. The namespace and its
            # objects must have one spelling, or no object would seem to be inside.
            self._catalog.namespaces.locate(theirs)
            return spelled
        if not theirs.startswith(LOCAL_ROOT):
            return theirs
        if not self._old_root or not theirs.startswith(self._old_root):
            asked = f", and {self._old_root.removeprefix('local://')} is not it" if self._old_root else ""
            raise Invalid(
                f"{theirs} lies in a folder of the old server's machine: --objects names the root of its local store"
                + asked,
                address=theirs,
            )
        return "local://" + theirs.removeprefix(self._old_root)

    def of(self, stats: ObjectStats) -> Entry:
        address = self.address_of(stats.physical_address)
        return Entry(
            address=(self.is_in_place and key_inside(address, self.namespace)) or address,
            size_bytes=stats.size_bytes or 0,
            checksum=stats.checksum,
            modified_ms=stats.mtime * 1000,
            content_type=stats.content_type or CONTENT_TYPE_DEFAULT,
            metadata=metadata_of(stats.metadata or {}),
        )

    async def checked(self, stats: ObjectStats) -> Entry:
        """Return the entry, after a check of its address. Checks each folder once.

        Raises:
            Invalid: this server does not open such stores; see also `address_of`.
            AddressInNamespace: the object is in a namespace that a Lakebed server collects.
        """
        entry = self.of(stats)
        if not is_absolute(entry.address):
            return entry
        folder = entry.address.rpartition("/")[0]
        folder = self.namespace if is_inside(folder, self.namespace) else folder
        if folder not in self._checked:
            await self._catalog.namespaces.check_outside(entry.address)
            self._checked.add(folder)
        return entry

    async def check_readable(self, stats: ObjectStats) -> None:
        """Check that this server can read the object.

        Raises:
            NotFound: this server does not find the object, or it has another size.
        """
        entry = await self.checked(stats)
        address = entry.address if is_absolute(entry.address) else f"{self.namespace}/{entry.address}"
        objectstore, key = self._catalog.namespaces.locate(address)
        try:
            stat = await objectstore.stat(key)
        except ObjectMissing as error:
            advice = (
                "copy what is in the old root into the folder `objects` of the data folder"
                " (cp -a OLD-ROOT/. DATA/objects/), or set LAKEBED_BLOCKS_LOCAL_ROOT to the old root"
                if address != stats.physical_address
                else "it must use the source's object store"
            )
            raise NotFound(
                f"{stats.path} should lie at {address}, and this server finds nothing there: {advice}",
                address=address,
            ) from error
        if stat.size_bytes != entry.size_bytes:
            raise NotFound(
                f"{stats.path} should have {entry.size_bytes:,} bytes, and {address} has {stat.size_bytes:,}",
                address=address,
            )


def metadata_of(theirs: dict[str, str]) -> dict[str, str]:
    """Remove the S3 header's prefix from names. Keep a name if the rest is empty, or is a name of its own."""
    here = dict(theirs)
    for name in theirs:
        plain = name[len(S3_NAME) :].lower()
        if name.lower().startswith(S3_NAME) and plain and plain not in here:
            here[plain] = here.pop(name)
    return here
