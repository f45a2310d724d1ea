"""Answer `lakebed gc deleted why`: why an object of a deleted repository exists, and until when.

Commits and rules do not keep objects of a deleted repository. From a fixed time on, its collection deletes the objects
in recorded slices, unless legal holds are in force or another repository names an object. So a search reads no trees,
except for a path at a ref: the collection deletes trees too. The ledger has the deleted objects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TypeAlias

from lakebed.base import Corrupt, RepositoryUid, is_absolute, key_inside
from lakebed.catalog import DeletedRepositories
from lakebed.gc.live.reading.elsewhere import Elsewhere, NamedElsewhere
from lakebed.gc.live.records.settings import HoldBook
from lakebed.gc.messages import Fate, LedgerRow, LedgerState, Question, WhyAnswer, WhyObject, WhyProgress, is_special
from lakebed.objectstore import ObjectStat
from lakebed.versions import BranchRecord, Versions

from .why import OBJECTS_SHOWN, Why, check_question, reported

Steps: TypeAlias = AsyncGenerator[WhyProgress | WhyAnswer, None]


class DeletedWhy:
    def __init__(
        self, deleted: DeletedRepositories, uid: RepositoryUid, versions: Versions, why: Why, elsewhere: Elsewhere
    ) -> None:
        self._deleted = deleted
        self._uid = uid
        self._versions = versions
        self._why = why
        self._elsewhere = elsewhere
        self._holds = HoldBook(versions)

    async def steps(self, question: Question) -> Steps:
        """Yield progress, then the answer. The question is an address, or a ref and a path.

        If the path does not exist at the ref, search the ledger. Uncommitted objects are found only by address.

        Raises:
            Invalid: see there.
            DeletedNotFound: the repository was brought back or forgotten.
            Corrupt: a tree of another repository is missing or altered.
        """
        check_question(**question._asdict())
        goes_ms = await self._deleted.delete_from_ms(self._uid)
        taken: list[LedgerRow] = []
        at_ref = await self._at_ref(question) if question.path else None
        if question.address or at_ref is not None:
            addresses = [at_ref or self._why.canonical(question.address)]
        else:
            async for step in reported("ledger", self._why.ledger(frozenset(), question.path, taken)):
                yield step
            addresses = list(dict.fromkeys(row.address for row in taken))
        shown = addresses[:OBJECTS_SHOWN]
        stats = {one: None if is_absolute(one) else await self._why.stat(one) for one in shown}
        async for step in self._why.deletions(stats, taken):
            yield step
        names: Mapping[str, str] = {}
        if any(stats.values()):
            done = 0
            async for found in self._elsewhere.steps():
                if isinstance(found, NamedElsewhere):
                    names = found.names
                else:
                    done += found.files
                    yield WhyProgress(stage="elsewhere", done=done, files=found.files)
        yield WhyAnswer(
            repository_uri=self._versions.objectstore.uri,
            **question._asdict(),
            at_ref=at_ref is not None,
            now_ms=self._versions.ports.clock.now_ms(),
            rules_version=0,
            has_rules=False,
            deleted_uid=self._uid,
            objects=tuple([await self._object(one, stats[one], taken, names, goes_ms=goes_ms) for one in shown]),
            objects_count=len(addresses),
        )

    async def _at_ref(self, question: Question) -> str | None:
        # A branch of a deleted repository cannot be resolved, but its record still names its head.
        branch = await self._versions.inventory.find(BranchRecord, question.ref)
        ref = question.ref if branch is None else branch.commit_id
        try:
            return await self._why.at_ref(ref, question.path, frozenset())
        except Corrupt:
            return None  # The collection already deleted the tree.

    async def _object(
        self,
        address: str,
        stat: ObjectStat | None,
        taken: list[LedgerRow],
        names: Mapping[str, str],
        *,
        goes_ms: int,
    ) -> WhyObject:
        rows = tuple(row for row in taken if row.address == address)
        uri = self._versions.objectstore.uri
        elsewhere = {name for text, name in names.items() if key_inside(text, uri) == address}
        holds: tuple[str, ...] = ()
        if is_absolute(address):
            fate = Fate.OUTSIDE
        elif stat is None:
            went = any(row.state not in (LedgerState.FAILED, LedgerState.KEPT) for row in rows)
            fate = Fate.TAKEN if went else Fate.UNKNOWN
        elif is_special(address):
            fate = Fate.OWN
        elif await self._why.slice_of(address) is None:
            fate = Fate.UNRECORDED
        else:
            # Any hold stops the whole collection.
            holds = tuple(hold.name for hold in (await self._holds.in_force()).holds)
            fate = Fate.KEPT if holds or elsewhere else Fate.DELETED
        return WhyObject(
            address=address,
            fate=fate,
            size_bytes=None if stat is None else stat.size_bytes,
            modified_ms=None if stat is None else stat.modified_ms,
            goes_ms=goes_ms if fate is Fate.DELETED else None,
            taken=rows,
            holds=holds,
            elsewhere=tuple(sorted(elsewhere)),
        )
