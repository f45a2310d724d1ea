"""The live side of collections for one repository: `lakebed.gc.messages.Requests`. The server's routes call it too.

A collector decides and deletes. The live side says what is alive, keeps the runs' records, and makes sure that writers
and runs see each other. The order of the steps is the proof (docs/design/protocols.md).

Each request is a method of the part that does it: `service.sweep` is `Expiring.sweep`. Here stand those that need two.
"""

from __future__ import annotations

from msgspec.structs import replace

from lakebed.base import RunId
from lakebed.gc.messages import (
    Adopting,
    DisagreementPage,
    MissingCommits,
    Planning,
    Purging,
    Question,
    Restore,
    RestorePage,
    RulesVersion,
    RunList,
    RunView,
    UnlistedSlices,
    WhyPage,
    check_run_id,
)
from lakebed.versions import Versions

from .apply_steps import ApplySteps
from .defer.deferring import Deferring
from .defer.restoring import Refusal, Restoring, refuse_nothing
from .defer.undoing import Undoing
from .explain.comparing import Comparing
from .explain.searches import Searches
from .explain.why import Why
from .installation.installation import Installation
from .installation.missing import Missing
from .installation.unlisted import Unlisted
from .options import ServiceOptions
from .plan_steps import PlanSteps
from .publish.erasing import Erasing
from .publish.expiring import Expiring
from .publish.metadata import MetadataRuns
from .reading.reading import Reading
from .records.holds import HoldBook
from .records.runs import Planners, RunBook
from .records.settings import RuleBook, rules_version
from .records.signing import Certifying


class CollectionService:
    """Any number of these, in any number of processes, may serve one repository."""

    def __init__(
        self,
        versions: Versions,
        options: ServiceOptions | None = None,
        *,
        default_branch: str = "main",
        user_id: str = "",
        is_job: bool = False,
        refusal: Refusal = refuse_nothing,
        continuation_key: bytes = b"",
        certificate_key: bytes = bytes(32),
        searches: Searches | None = None,
    ) -> None:
        """`user_id` asks, by a job of the server if `is_job`, and may restore what `refusal` does not refuse. Without a
        user there is only one person, who trusts each plan (records/runs.py).

        `continuation_key` seals the tokens of a restore, and of a search for staged entries. A server has one secret
        key for all its processes, and one `Searches` for each process. `certificate_key`, 32 secret bytes, signs
        certificates of erasures.
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
        self.why = Why(versions, self.rules)
        self._runs = runs = RunBook(versions, options)
        self._planners = planners = Planners(versions, user_id=user_id, is_job=is_job)
        self._restoring = Restoring(versions, key=continuation_key, refusal=refusal)
        self._missing = Missing(versions, runs)
        self._unlisted = Unlisted(versions, self.installation)
        reading = Reading(versions, options)
        self._expiring = expiring = Expiring(versions, runs, self.rules, reading)

        plan = PlanSteps(versions, options)
        self.start, self.read_uncommitted = plan.start, plan.read_uncommitted
        self.prepare_commits, self.mark = plan.prepare_commits, plan.mark
        self.note_planned = planners.note
        metadata = MetadataRuns(versions, runs, options)
        apply = ApplySteps(versions, runs, planners, expiring, metadata)
        self.apply, self.expire, self.sweep = apply.apply, apply.expire, expiring.sweep
        self.retire = metadata.retire
        self.end, self.abandon = apply.end, apply.abandon

        deferring = Deferring(versions, runs, reading, expiring)
        self.defer, self.purge = deferring.defer, deferring.purge
        self.undo = Undoing(versions, runs, self.rules, expiring).undo

        erasing = Erasing(versions, runs, options, key=continuation_key)
        self.find_staged, self.unstage = erasing.find, erasing.unstage
        certifying = Certifying(versions, runs, key=certificate_key, user_id=user_id)
        self.sign_certificate, self.check_certificate = certifying.sign, certifying.check
        self.certificate_key = certifying.key
        self.holds_in_force = self.holds.in_force
        self.adopt_slices = self._unlisted.adopt
        self.close_slices_for_runs = runs.close_slices_for_runs

    # Being the only one

    async def purging(self) -> Purging:
        """Say where the caller may delete, with a fresh mark by which it knows the store. Each run asks the rest.

        Raises:
            OtherInstallation: see `PlanSteps.start`.
        """
        # A copy of the store that was made before this answer lacks the mark.
        return Purging(namespace=self._versions.objectstore.uri, mark=await self.installation.mark())

    async def adopting(self) -> Adopting:
        """Choose this installation, of several in the namespace. See `Installation.adopt` and `HoldBook.adopt`."""
        # First: once it is adopted, its collections go on.
        await self.holds.adopt(by=self._user_id)
        adopted = await self.installation.adopt(by=self._user_id)
        return Adopting(adopted_by=adopted.adopted_by, adopted_ms=adopted.adopted_ms)

    async def find_slices(self) -> UnlistedSlices:
        """List what `adopt_slices` would put on record, or refuse as it would. Changes nothing."""
        return UnlistedSlices(slices=tuple(await self._unlisted.find()))

    async def find_missing(self, token: str | None = None) -> MissingCommits:
        """Look for a second or so, then answer a page or say how to go on. See `Searches.missing`."""
        return await self._searches.missing(self._versions, self._missing, token)

    async def mark_missing(self, token: str | None = None) -> MissingCommits:
        """The same, and mark what no ref names once all is looked at.

        Raises:
            OtherInstallation: adopt first; the other one may know what became of these commits.
        """
        await self.installation.check()
        return await self._searches.missing(self._versions, self._missing, token, marks=True)

    # Looking

    async def namespace(self) -> str:
        """Return the URI of the storage namespace."""
        return self._versions.objectstore.uri

    async def planning(self) -> Planning:
        """Begin nothing: a caller who may not plan, or cannot, learns it before any slow step."""
        return Planning(has_rules=(await self.rules.read()).rules is not None, namespace=self._versions.objectstore.uri)

    async def rules_in_force(self) -> RulesVersion:
        """Return the rules in force, with their version."""
        return rules_version(await self.rules.read())

    async def run(self, run_id: str) -> RunView:
        """
        Raises:
            RunNotFound: there is none.
        """
        id_ = check_run_id(run_id)
        record, _ = await self._runs.read(id_)
        return replace(await self._runs.view(id_, record), planned_by=await self._planners.of(id_))

    async def runs(self) -> RunList:
        """Return every run, newest first, and who made which plan."""
        planned = await self._planners.every()
        views = await self._runs.views({RunId(plan.run_id): plan.by for plan in planned})
        return RunList(runs=tuple(views), planned=tuple(planned))

    async def why_page(self, question: Question, token: str | None = None) -> WhyPage:
        """Search for a second or so, then answer or say how to go on. See `Searches.page`."""
        return await self._searches.page(self._versions, question, token)

    async def compare_ledger(self, run_id: str = "", token: str | None = None) -> DisagreementPage:
        """Compare a page of the ledger with plans and with the store. See `Comparing.page`."""
        return await Comparing(self._versions, self._runs).page(run_id, token)

    async def restore(self, body: Restore) -> RestorePage:
        """Restore one page. See `Restoring.restore`."""
        return await self._restoring.restore(body, branch=body.branch or self._default_branch)

    # Upkeep

    async def abandon_dead_runs(self) -> list[RunId]:
        """Runs that were left marking long ago keep finished records from being cleaned away. Safe at any time.

        And what runs that ended or were abandoned left of the list of what they expired.
        """
        abandoned = await self._runs.abandon_dead()
        await self._expiring.drop_lists(old_age_ms=2 * self._options.dead_run_age_ms)
        return abandoned
