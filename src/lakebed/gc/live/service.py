"""Serve the live side of one repository's collections: `lakebed.gc.messages.Requests`. The server's routes call it too.

A collector decides and deletes. The live side lists live addresses, keeps the runs' records, and makes writers and
runs see each other. The safety proof rests on the order of the steps (docs/design/protocols.md).

Each request is a method of the part that does it: `service.sweep` is `Expiring.sweep`. This class has the others.
"""

from __future__ import annotations

from lakebed.base import RunId
from lakebed.gc import messages
from lakebed.versions import Versions

from .apply_steps import ApplySteps
from .defer.deferring import Deferring
from .defer.restoring import Charge, Refusal, Restoring, charge_nothing, refuse_nothing
from .defer.undoing import Undoing
from .explain.comparing import Comparing
from .explain.searches import Searches
from .explain.tables import TableLosses, TableReader
from .explain.why import Why
from .installation.installation import Installation
from .installation.missing import Missing, Unlisted
from .options import ServiceOptions
from .plan_steps import PlanSteps
from .publish.erasing import Erasing
from .publish.expiring import Expiring
from .publish.metadata import MetadataRuns
from .reading.reading import Reading
from .records.runs import Planners, RunBook
from .records.settings import HoldBook, RuleBook, rules_version
from .records.signing import Certifying

__all__ = ["CollectionService"]


class CollectionService:
    """Serve one repository. Any number of services, in any number of processes, may do so."""

    def __init__(
        self,
        versions: Versions,
        options: ServiceOptions | None = None,
        *,
        default_branch: str = "main",
        user_id: str = "",
        is_job: bool = False,
        refusal: Refusal = refuse_nothing,
        charge: Charge = charge_nothing,
        continuation_key: bytes = b"",
        certificate_key: bytes = bytes(32),
        searches: Searches | None = None,
        table_reader: TableReader | None = None,
    ) -> None:
        """Make a service for the user `user_id`; with `is_job`, for a job of the server.

        The user may restore every object that `refusal` does not refuse and `charge` finds room for. Without a user,
        every plan is trusted (records/runs.py). `continuation_key` seals the tokens of restores and of searches for
        staged entries. All processes of a server share it, and each process has one `Searches`. `certificate_key`, 32
        secret bytes, signs certificates of erasures. `table_reader` reads metadata of Iceberg tables.
        """
        options = options or ServiceOptions()
        self._versions = versions
        self._options = options
        self._default_branch = default_branch
        self._user_id = user_id
        self._searches = searches or Searches(versions.ports)
        self.rules = RuleBook(versions)
        self.holds = HoldBook(versions)
        self.installation = Installation(versions)
        self.why = Why(versions, self.rules, default_branch)
        self._runs = runs = RunBook(versions, options, user_id=user_id)
        planners = Planners(versions, runs, user_id=user_id, is_job=is_job)
        self._restoring = Restoring(versions, key=continuation_key, refusal=refusal, charge=charge)
        self._missing, self._unlisted = Missing(versions, runs), Unlisted(versions, self.installation)
        reading = Reading(versions, options)
        self._expiring = expiring = Expiring(versions, runs, self.rules, reading)

        plan, self.find_tables = PlanSteps(versions, options), TableLosses(versions, table_reader).find
        self.start, self.read_uncommitted = plan.start, plan.read_uncommitted
        self.prepare_commits, self.mark = plan.prepare_commits, plan.mark
        self.note_planned, self.purging = planners.note, self.installation.purging
        self.run, self.runs = planners.run, planners.runs
        metadata = MetadataRuns(versions, runs, options)
        apply = ApplySteps(versions, runs, planners, expiring, metadata)
        self.apply, self.expire, self.sweep = apply.apply, apply.expire, expiring.sweep
        self.retire, self.end, self.abandon = metadata.retire, apply.end, apply.abandon

        deferring = Deferring(versions, runs, reading, expiring)
        self.defer, self.purge = deferring.defer, deferring.purge
        self.undo = Undoing(versions, runs, self.rules, expiring).undo

        erasing = Erasing(versions, runs, options, key=continuation_key)
        self.find_staged, self.unstage = erasing.find, erasing.unstage
        certifying = Certifying(versions, runs, key=certificate_key, user_id=user_id)
        self.sign_certificate, self.check_certificate = certifying.sign, certifying.check
        self.certificate_key = certifying.key
        self.holds_in_force, self.adopt_slices = self.holds.in_force, self._unlisted.adopt
        self.close_slices_for_runs = runs.close_slices_for_runs

    # Installation

    async def adopting(self) -> messages.Adopting:
        """Choose this installation of several in the namespace. See `Installation.adopt` and `HoldBook.adopt`."""
        # First the holds: collections continue once the installation is adopted.
        await self.holds.adopt(by=self._user_id)
        adopted = await self.installation.adopt(by=self._user_id)
        return messages.Adopting(adopted_by=adopted.adopted_by, adopted_ms=adopted.adopted_ms)

    async def find_slices(self) -> messages.UnlistedSlices:
        """List the slices that `adopt_slices` would record, or refuse as it would. Changes nothing."""
        return messages.UnlistedSlices(slices=tuple(await self._unlisted.find()))

    async def find_missing(self, token: str | None = None) -> messages.MissingCommits:
        """Search for about a second, then return a page or a continuation token. See `Searches.missing`."""
        return await self._searches.missing(self._versions, self._missing, token)

    async def mark_missing(self, token: str | None = None) -> messages.MissingCommits:
        """Search as `find_missing`, and at the end mark the missing commits that no ref names.

        Raises:
            OtherInstallation: adopt first. The other installation may know the fate of these commits.
        """
        await self.installation.check()
        return await self._searches.missing(self._versions, self._missing, token, marks=True)

    # Queries

    async def namespace(self) -> str:
        """Return the URI of the storage namespace."""
        return self._versions.objectstore.uri

    async def planning(self) -> messages.Planning:
        """Answer before any slow step of a plan, so that a caller without the right or rules stops early."""
        return messages.Planning(
            has_rules=(await self.rules.read()).rules is not None, namespace=self._versions.objectstore.uri
        )

    async def rules_in_force(self) -> messages.RulesVersion:
        """Return the rules in force, with their version."""
        return rules_version(await self.rules.read())

    async def why_page(
        self, question: messages.Question, token: str | None = None, *, files: int = 0
    ) -> messages.WhyPage:
        """Search for about a second, then return the answer or a continuation token. See `Searches.page`."""
        return await self._searches.page(
            self._versions, question, token, files=files, default_branch=self._default_branch
        )

    async def compare_ledger(self, run_id: str = "", token: str | None = None) -> messages.DisagreementPage:
        """Compare a page of the ledger with plans and with the store. See `Comparing.page`."""
        return await Comparing(self._versions, self._runs).page(run_id, token)

    async def restore(self, body: messages.Restore) -> messages.RestorePage:
        """Restore one page. See `Restoring.restore`."""
        return await self._restoring.restore(body, branch=body.branch or self._default_branch)

    # Upkeep

    async def abandon_dead_runs(self) -> list[RunId]:
        """Abandon dead runs, so that the cleaner may remove finished records. Safe at any time.

        Also remove leftover lists of expired commits of runs that ended or were abandoned.
        """
        abandoned = await self._runs.abandon_dead()
        await self._expiring.drop_lists(old_age_ms=2 * self._options.dead_run_age_ms)
        return abandoned
