"""Put slices on record that have lost their record, or never had one here: as after the restore of an older backup.

No collection lists such a slice, so what lies in it stays for ever. A person asks for this, once nothing else uses the
namespace (docs/design/protocols.md, "Slices without a record").

1. This installation goes on, and a person chose it at least ADOPTED_AGE_MS ago.
2. List the folders of `data/`, and then read the records. A slice has its record before it has an object.
3. No such slice was opened since that choice: another installation that is alive would have opened one.
4. `set_if` absent → open, of an owner that is dead.

The next runs fence it, as they do every slice whose owner seems dead: not before `dead_owner_age_ms`, and only after
each branch was frozen is it closed, and listed. A server that still knows the slice as its own finds that its record is
another one, and takes a fresh address.
"""

from __future__ import annotations

from typing import Final

from lakebed.base import Conflict, parse_slice_name, slice_opened_at_ms
from lakebed.gc.messages import DATA_PREFIX, AdoptedSlices
from lakebed.versions import SliceRecord, Versions

from .installation import Installation

ADOPTED_AGE_MS: Final = 86_400_000
"""A server that writes opens a slice each hour."""


class NotAdopted(Conflict):
    """No person chose this installation long enough ago. Facts: `adopted_ms`, 0 for never."""


class SlicesInUse(Conflict):
    """Another installation writes to the namespace: it opened a slice since this one was chosen. Facts: `slice`."""


class Unlisted:
    def __init__(self, versions: Versions, installation: Installation) -> None:
        self._versions = versions
        self._installation = installation

    async def adopt(self) -> AdoptedSlices:
        """Name the slices that are on record now. Again after a lost answer or a crash. Costs a listing of folders.

        Raises:
            OtherInstallation, NotRestored, NotAdopted, SlicesInUse: as `find`. Nothing was adopted.
        """
        unlisted = await self.find()
        return AdoptedSlices(slices=tuple([name for name in unlisted if await self._versions.slices.adopt(name)]))

    async def find(self) -> list[str]:
        """Name the slices without a record, in order, once it is sure that they may be adopted.

        Raises:
            OtherInstallation, NotRestored: see `Installation`.
            NotAdopted, SlicesInUse: see these.
        """
        record = await self._installation.check()
        await self._installation.check_restored(record)
        now_ms = self._versions.ports.clock.now_ms()
        if not record.adopted_ms or now_ms - record.adopted_ms < ADOPTED_AGE_MS:
            since = "was chosen less than a day ago" if record.adopted_ms else "was never chosen"
            raise NotAdopted(
                f"this installation {since}: slices without a record are adopted a day after `lakebed gc adopt`, and"
                " only while nothing else writes to the namespace",
                adopted_ms=record.adopted_ms,
            )
        level = await self._versions.objectstore.level(DATA_PREFIX)
        lying = [folder[len(DATA_PREFIX) : -1] for folder in level.folders]
        known = {name async for name, _ in self._versions.inventory.every(SliceRecord)}
        numbers = {name: number for name in lying if (number := parse_slice_name(name)) is not None}
        unlisted = sorted(numbers.keys() - known)
        for name in unlisted:
            # By the clock of its owner: one reason more to stop, and no safety rests on it.
            opened_ms = slice_opened_at_ms(numbers[name])
            if opened_ms >= record.adopted_ms:
                raise SlicesInUse(
                    f"slice {name} has no record, and was opened after this installation was chosen: another one writes"
                    " to the namespace",
                    slice=name,
                )
        return unlisted
