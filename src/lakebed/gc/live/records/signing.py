"""Sign certificates of erasures with a key of the server, and check the signatures.

A collector lists the absent objects in the store. The server adds user and time, and signs if the certificate agrees
with the run's record and plan. The server does not check the store itself.

The signature is Ed25519, over the certificate's head in JSON with an empty signature. A public key is enough to check
a certificate without this server. All certificates of an installation use one key.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from lakebed.base import Corrupt, NotFound, RunId, RunState
from lakebed.gc import messages
from lakebed.gc.live.errors import RunNotFound
from lakebed.gc.live.installation.installation import Installation
from lakebed.gc.rules import Selection
from lakebed.objectstore import ObjectMissing
from lakebed.versions import Versions

from .runs import RunBook


class _Order(NamedTuple):
    """Hold the facts of a run that no certificate may change."""

    repository: str
    selection: Selection
    why: str
    takes_shared: bool
    planned_ms: int
    plan: str


class Certifying:
    """Sign with `key`, 32 secret bytes of the server, for the user `user_id`."""

    def __init__(self, versions: Versions, runs: RunBook, *, key: bytes, user_id: str) -> None:
        self._versions = versions
        self._runs = runs
        self._private = Ed25519PrivateKey.from_private_bytes(key)
        self._user_id = user_id
        self._installation = Installation(versions)

    async def key(self) -> messages.CertificateKey:
        """Return the public key, as PEM."""
        return self._public_key()

    def _public_key(self) -> messages.CertificateKey:
        # Imported here: the import is slow, and few servers certify.
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = self._private.public_key()
        return messages.CertificateKey(
            pem=public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        )

    async def sign(self, run_id: str, made: messages.CertificateHead) -> messages.CertificateHead:
        """Return the head with the caller, the time and a signature.

        Raises:
            NotFound: the run does not exist, is not an erasure, or was not applied.
            OtherInstallation: see `Installation.check`.
            Corrupt: the certificate belongs to another run, or disagrees with the run's plan.
        """
        await self._installation.check()
        await self._check_agrees(messages.check_run_id(run_id), made)
        await self._runs.note_certified(messages.check_run_id(run_id))
        # The head has the digest of the rest, so the server signs without the list of objects.
        now_ms = self._versions.ports.clock.now_ms()
        signed = replace(made, made_by=self._user_id or made.made_by, made_ms=now_ms, signature="")
        return replace(signed, signature=self._private.sign(messages.signed_bytes(signed)).hex())

    async def check(self, run_id: str, certificate: messages.CertificateHead) -> messages.CertificateHead:
        """Return the head of a certificate that this server signed and that agrees with the run's records.

        Raises:
            NotFound, Corrupt: see `sign`. Corrupt also if the signature is missing or wrong.
        """
        await self._check_agrees(messages.check_run_id(run_id), certificate)
        if not messages.is_signed(certificate, self._public_key().pem):
            raise Corrupt(
                f"the certificate of run {run_id} is not as this server signed it: it was changed, or another server"
                " made it",
                run_id=run_id,
            )
        return certificate

    async def _check_agrees(self, run_id: RunId, certificate: messages.CertificateHead) -> None:
        order = await self._order(run_id)
        said = _order_of(certificate)
        wrong = [name for name, mine, its in zip(_Order._fields, order, said, strict=True) if mine != its]
        wrong += ["run_id"] if certificate.run_id != run_id else []
        wrong += ["namespace"] if certificate.namespace != self._versions.objectstore.uri.rstrip("/") else []
        if wrong:
            raise Corrupt(
                f"the certificate disagrees with the records of run {run_id}: {', '.join(wrong)}", run_id=run_id
            )

    async def _order(self, run_id: RunId) -> _Order:
        """Return the facts in the run's plan. If the plan was deleted, return those in its signed certificate."""
        missing = NotFound(f"run {run_id} is not an erasure that was applied here", run_id=run_id)
        try:
            record, _ = await self._runs.read(run_id)
            if not record.kind.spec.by_order or record.state not in (RunState.SWEEPING, RunState.ENDED):
                raise missing
        except RunNotFound:
            pass  # The record of an old run is removed, but its certificate stays.
        else:
            try:
                plan = messages.decode_plan(
                    await self._versions.objectstore.get(messages.plan_path(record.kind, run_id)), run_id
                )
            except ObjectMissing:
                pass
            else:
                if plan.erasure is None:
                    raise missing
                order = plan.erasure
                return _Order(
                    plan.repository,
                    order.selection,
                    order.why,
                    order.takes_shared,
                    plan.now_ms,
                    plan.garbage.digest(),
                )
        try:
            data = await self._versions.objectstore.get(messages.certificate_path(run_id))
            # A certificate may have 64 MiB. Its digest would block the event loop.
            stored = await self._versions.ports.tasks.apart(lambda: messages.decode_head(data))
        except (ObjectMissing, messages.BadInput):
            raise missing from None
        if not messages.is_signed(stored, self._public_key().pem):
            raise missing
        return _order_of(stored)


def _order_of(certificate: messages.CertificateHead) -> _Order:
    return _Order(
        certificate.repository,
        certificate.selection,
        certificate.why,
        certificate.takes_shared,
        certificate.planned_ms,
        certificate.plan,
    )
