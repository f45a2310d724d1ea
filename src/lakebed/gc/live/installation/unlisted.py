"""Record slices without a record, as after the restore of an older backup (docs/design/protocols.md, "Slices without a
record"). No collection lists such a slice, so its objects would stay.

1. Check that this installation may collect, and was adopted at least ADOPTED_AGE_MS ago.
2. List the folders of `data/`, then read the records. A slice has its record before its first object.
3. Refuse if such a slice was opened after the adoption: another live installation opened it.
4. `set_if` absent → open, with a dead owner.

Later runs fence it, as every slice with a dead owner, after `dead_owner_age_ms`. It is closed after every branch was
frozen. A server that still owns the slice finds another record, and uses a fresh address.
"""

from __future__ import annotations

from typing import Final

from lakebed.base import Conflict, parse_slice_name, slice_opened_at_ms
from lakebed.gc.messages import DATA_PREFIX, AdoptedSlices
from lakebed.versions import SliceRecord, Versions

from .installation import Installation

ADOPTED_AGE_MS: Final = 86_400_000
"""A server that writes opens a slice each hour."""


class Unlisted:
    def __init__(self, versions: Versions, installation: Installation) -> None:
        self._versions = versions
        self._installation = installation

    async def adopt(self) -> AdoptedSlices:
        """Record the slices without a record and return their names. Call it again after a lost answer or a crash.

        Costs a listing of folders.

        Raises:
            OtherInstallation, Conflict: see `find`. No slice was recorded.
        """
        unlisted = await self.find()
        return AdoptedSlices(slices=tuple([name for name in unlisted if await self._versions.slices.adopt(name)]))

    async def find(self) -> list[str]:
        """Return the slices without a record, in order, after all checks that they may be adopted.

        Raises:
            OtherInstallation, Conflict: see `Installation`.
        """
        record = await self._installation.check()
        await self._installation.check_restored(record)
        now_ms = self._versions.ports.clock.now_ms()
        if not record.adopted_ms or now_ms - record.adopted_ms < ADOPTED_AGE_MS:
            since = "was chosen less than a day ago" if record.adopted_ms else "was never chosen"
            raise Conflict(
                f"this installation {since}: slices without a record are adopted a day after `lakebed gc adopt`, and"
                " only while nothing else writes to the namespace",
                adopted_ms=record.adopted_ms,
            )
        level = await self._versions.objectstore.level(DATA_PREFIX)
        lying = [folder[len(DATA_PREFIX) : -1] for folder in level.folders]
        # Records after the listing: a slice has its record before its first object.
        known = {name async for name, _ in self._versions.inventory.every(SliceRecord)}
        numbers = {name: number for name in lying if (number := parse_slice_name(name)) is not None}
        unlisted = sorted(numbers.keys() - known)
        for name in unlisted:
            # The owner's clock. Safety does not depend on it: this check only adds a reason to stop.
            opened_ms = slice_opened_at_ms(numbers[name])
            if opened_ms >= record.adopted_ms:
                raise Conflict(
                    f"slice {name} has no record, and was opened after this installation was chosen: another one writes"
                    " to the namespace",
                    slice=name,
                )
        return unlisted
