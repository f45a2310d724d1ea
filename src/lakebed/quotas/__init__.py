"""Quotas: how many bytes may be written to a repository, to a branch, and by a user.

    meter = Meter(store, ports)
    await Books(meter).set(of_branch(uid, "dev"), limit_bytes=10 << 30, by="ada")
    reservation = await meter.reserve([of_branch(uid, "dev")], 4096)
    reservation.keep()

Design: docs/design/0017-quotas.md.
"""

from .books import Books, CountOvertaken, NoQuota, mark_stale
from .meter import Charges, Meter, QuotaExceeded, QuotaRecord, Reservation, Scope, of_branch, of_repository, of_user
