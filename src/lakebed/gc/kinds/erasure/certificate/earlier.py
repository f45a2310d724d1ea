"""Read what this erasure and others selected before: the objects of plans and of certificates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from lakebed.base import RunKind, RunState, count_of
from lakebed.gc import messages
from lakebed.gc.kinds.erasure.erasing import key_of
from lakebed.gc.mark.inputs.selecting import paths_of
from lakebed.gc.messages import (
    CERTIFICATES_PREFIX,
    BadInput,
    Certificate,
    ErasedObject,
    ErasureOrder,
    Plan,
    PlanMissing,
    Standing,
    certificate_path,
    decode_certificate,
)
from lakebed.gc.rules import Matcher, Selection
from lakebed.gc.runs.context import RunContext, find, read_plan

from .standing import addresses_of_parts

_UNREAD_EARLIER: Final = (
    "copies were not sought of all that certificates of earlier erasures name: this one cannot be read"
)
_LEFT_OUT: Final = "objects of other erasures, of which metadata alone select, or the plan is gone, were not looked at"
_UNREAD_PLAN: Final = "copies were not sought of what it took: it has no certificate, and its plan cannot be read"
_APPLIED: Final = frozenset({RunState.SWEEPING, RunState.ENDED})


async def planned_of(context: RunContext, plan: Plan, order: ErasureOrder) -> tuple[ErasedObject, ...]:
    """Return the objects of a plan: those that it deletes, and those of selected staged entries that it keeps.

    Raises:
        BadInput: a part of the plan is missing.
    """
    garbage = await context.read(plan.garbage, messages.GARBAGE)
    columns = garbage["address"].to_pylist(), paths_of(garbage), garbage["size_bytes"].to_pylist()
    staged = {key_of(entry, plan.namespace): entry.checksum for entry in order.staged}
    checksums = {**staged, **order.checksums}
    parts = addresses_of_parts(order.staged, plan.namespace)
    planned = tuple(
        ErasedObject(
            address=address,
            paths=paths,
            size_bytes=size,
            checksum=checksums.get(address, ""),
            is_part=address in parts,
        )
        for address, paths, size in zip(*columns, strict=True)
    )
    # Staged objects that the plan keeps are selected, too. Only the store shows whether they were deleted since.
    asked = frozenset(erased.address for erased in planned)
    others: dict[str, ErasedObject] = {}
    for entry in order.staged:
        address = key_of(entry, plan.namespace)
        if address not in asked:
            paths = tuple(sorted({entry.path, *(others[address].paths if address in others else ())}))
            others[address] = ErasedObject(
                address=address,
                paths=paths,
                size_bytes=entry.size_bytes,
                checksum=entry.checksum,
                is_part=address in parts,
            )
    return (*planned, *others.values())


class _Earlier(NamedTuple):
    """Hold the certificate with objects of other erasures. `unread` are unreadable records, `remains` the omissions."""

    certificate: Certificate
    unread: Sequence[Standing]
    remains: Sequence[str]


async def with_earlier(context: RunContext, before: Certificate) -> _Earlier:
    """Add objects of other applied erasures at the same paths or digests, and of the run's own earlier certificate.

    Erasures are applied in any order, so later ones are read, too. Read the plan of an erasure without a certificate.
    """
    # The commits of these objects may be gone. Without the recorded checksum no search finds the copies.
    applied = await _other_erasures(context, before.run_id)
    keys = sorted([stat.key async for page in context.store.list(CERTIFICATES_PREFIX) for stat in page])
    selection = before.selection
    is_selected, is_any = _at_paths(selection), not (selection.paths or selection.globs or selection.digests)

    async def read(key: str) -> Sequence[ErasedObject] | Standing | None:
        data = await find(context.store, key)
        try:
            earlier = None if data is None else decode_certificate(data)
        except BadInput:
            return Standing(what="copy", where=key, why=_UNREAD_EARLIER)
        if earlier is None:
            return ()
        same = earlier.run_id == before.run_id or earlier.selection == selection
        return chosen(earlier.objects, same=same)

    def chosen(objects: Sequence[ErasedObject], *, same: bool) -> Sequence[ErasedObject] | None:
        if same:
            return objects
        # Certificates do not record metadata, so a selection by metadata alone cannot choose from their objects.
        return None if is_any else is_selected(objects)

    async def read_planned(run_id: str) -> Sequence[ErasedObject] | Standing | None:
        try:
            plan = await read_plan(context.store, run_id)
            if plan.erasure is None:
                return ()
            objects = await planned_of(context, plan, plan.erasure)
            return chosen(objects, same=plan.erasure.selection == selection)
        except PlanMissing:
            return None
        except BadInput as error:
            return Standing(what="copy", where=f"run {run_id}", why=f"{_UNREAD_PLAN}: {error}")

    joined = {one.address: one for one in before.objects}
    unread: list[Standing] = []
    left_out = 0

    def add(objects: Sequence[ErasedObject] | Standing | None) -> bool:
        """Add the objects, or the standing of an unreadable record. Return False if the erasure is left out."""
        if isinstance(objects, Standing):
            unread.append(objects)
        for erased in objects if objects and not isinstance(objects, Standing) else ():
            joined[erased.address] = _joined(joined.get(erased.address, erased), erased)
        return objects is not None

    async for _, found in context.ports.tasks.ahead(keys, read):
        left_out += not add(found)
    for run_id in applied:
        if certificate_path(run_id) not in keys:
            left_out += not add(await read_planned(run_id))
    erasures = count_of(left_out, "other erasure")
    remains = [f"{_LEFT_OUT}: {erasures}. Verify these by themselves"] if left_out else []
    return _Earlier(replace(before, objects=tuple(joined.values())), unread, remains)


async def _other_erasures(context: RunContext, run_id: str) -> list[str]:
    """Return the ids of all other erasures that were applied."""
    views = await context.service.runs()
    return [
        view.run_id
        for view in views
        if view.kind is RunKind.ERASURE and view.state in _APPLIED and view.run_id != run_id
    ]


def _joined(known: ErasedObject, other: ErasedObject) -> ErasedObject:
    paths = tuple(sorted({*known.paths, *other.paths}))
    return replace(known, paths=paths, checksum=known.checksum or other.checksum)


def _at_paths(selection: Selection) -> Callable[[Sequence[ErasedObject]], list[ErasedObject]]:
    """Return a function that chooses objects with a selected digest, and others cut down to their selected paths."""
    # Certificates do not record metadata, so an object at a selected path is chosen whatever its metadata are.
    digests, is_selected = frozenset(selection.digests), Matcher(selection).selects_path

    def choose(objects: Sequence[ErasedObject]) -> list[ErasedObject]:
        met = [
            erased if erased.checksum in digests else replace(erased, paths=tuple(filter(is_selected, erased.paths)))
            for erased in objects
        ]
        return [erased for erased in met if erased.paths or erased.checksum in digests]

    return choose
