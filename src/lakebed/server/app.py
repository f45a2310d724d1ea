"""The composition root of one server process: options → drivers → parts → routes → one ASGI application.

Only this module reads the environment. `opened` opens every part and closes it again. `create_app` makes the
application. It does authentication, permissions, routing and the translation of errors for all routes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from importlib.metadata import version
from types import ModuleType
from typing import Final

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from lakebed import auth, operations
from lakebed.base import Denied, LakebedError, RepositoryUid
from lakebed.catalog import DAY_MS, Catalog, CatalogOptions
from lakebed.hooks import CALLER
from lakebed.kv import Store, open_store
from lakebed.objectstore import ObjectStore, environment_of
from lakebed.operations import history, openapi, table
from lakebed.operations import objects as objects_table
from lakebed.operations.gc import collectors
from lakebed.quotas import Books
from lakebed.runtime import live_ports
from lakebed.sandboxes import Sandboxes, is_current
from lakebed.versions import Options, TreeCache, Trees, Versions
from lakebed.wire import StorageConfig

from . import iceberg
from .agents import PATH as AGENTS_PATH
from .agents import AgentsDoor
from .collectors import Collectors, check_runs
from .events import Eventing
from .hard_delete import HardDeleting
from .hooks import ScriptReads, make_hooks
from .http.errors import NoSuchEndpoint, error_response, message_response, warn_of_wrong_secret
from .http.gate import look, may_leave, permissions_of
from .http.requests import JsonResponse, RestRequest, answer, check_origin, has_s3_signature
from .http.routing import Route, Router, resources_of
from .identity.providers import Providers
from .operate.audit import AuditLog
from .operate.health import Probe, alive
from .operate.logs import REQUEST_ID, access, log_access
from .operate.metrics import CONTENT_TYPE, MeasuredStore, Metrics, as_text
from .operate.survey import Survey
from .options import ServerOptions, namespace_opener
from .process.aside import Aside, Carry
from .process.draining import Drain
from .process.folder import NONCE_HEADER
from .process.pairing import pair
from .rest import actions, branches, commits, deleted, differences, dumps, installation, operators, pulls, repositories
from .rest.auth import browser_logins, roles, users
from .rest.events import subscriptions as events
from .rest.gc import hard_delete, holds, lifecycle
from .rest.gc import jobs as gc_jobs
from .rest.gc import ledger as gc_ledger
from .rest.gc import plans as gc_plans
from .rest.gc import rules as gc_rules
from .rest.gc import runs as gc
from .rest.gc import storage as gc_storage
from .rest.objects import content, imports, multipart, objects
from .rest.sandboxes import life as sandboxes
from .rest.sandboxes import quotas
from .s3.gateway import Gateway
from .s3.requests.requests import S3Request
from .state import AppState
from .web import Door

logger = logging.getLogger(__name__)

API_ROOT: Final = b"/api/v1/"
RESOURCES: Final[tuple[ModuleType, ...]] = (
    installation,
    operators,
    users,
    browser_logins,
    roles,
    repositories,
    deleted,
    dumps,
    actions,
    events,
    pulls,
    quotas,
    branches,
    commits,
    differences,
    objects,
    content,
    multipart,
    imports,
    gc,
    gc_plans,
    gc_jobs,
    gc_ledger,
    gc_rules,
    gc_storage,
    hard_delete,
    lifecycle,
    holds,
    sandboxes,
    # Tables: the catalog at another root, and ours.
    iceberg.namespaces,
    iceberg.tables,
    iceberg.branch_tables,
)
LARGE: Final = frozenset(
    (
        objects_table.LIST_OBJECTS,
        history.DIFF_REFS,
        history.DIFF_BRANCH,
        history.LOG_COMMITS,
        collectors.READ_GC_UNCOMMITTED,
        collectors.READ_GC_COMMITS,
    )
)
"""Operations that another process may carry out: pages of at least LARGE_PAGE, and the reading of a plan."""
LARGE_PAGE: Final = 250
PROOFS: Final = frozenset((b"authorization", b"cookie"))
ALONE_S: Final = 1.0
"""Seconds after a small request in which another one is likely."""
PRESIGN_S: Final = 15 * 60


@asynccontextmanager
async def opened(options: ServerOptions, aside: Aside | None = None) -> AsyncIterator[AppState]:
    """Open every part of a server process, and close it at the end. Each process is an instance with slices of its
    own. `aside` does large work, and is closed too.

    Raises:
        StoreUnavailable, StoreFormat, InvalidStoreUri: see `open_store`.
        WrongMetadata, Invalid: see `pair`.
    """
    store = open_store(options.metadata_uri)
    try:
        await pair(options.data_dir, store, live_ports().ids, holds_objects=options.holds_objects)
        state = await _compose(options, store, aside)
        try:
            yield state
        finally:
            if aside is not None:
                await aside.close()
            await state.background.close()
            await state.providers.close()
            await state.collectors.close()
            state.audit.close()
            await state.hard_deleting.close()
            await state.catalog.meter.settle(is_stopping=True)
            await _close_slices(state.catalog)
            await state.catalog.close()
    finally:
        await store.close()


async def _close_slices(catalog: Catalog) -> None:
    """Close the slices of this process, so that collectors do not wait for them. A run abandons a slice left open."""
    for versions in catalog.opened():
        try:
            await versions.slices.end()
        except LakebedError as error:
            logger.warning("a slice of %s stays open: %s", versions.uid, error)


async def _compose(options: ServerOptions, bare_store: Store, aside: Aside | None) -> AppState:
    ports, metrics = live_ports(), Metrics()
    store = MeasuredStore(bare_store, metrics)
    keys = await auth.load_server_keys(store, ports.ids, options.server_secret)
    accounts = auth.Accounts(store, ports, keys)
    principals = auth.Principals(store, ports, accounts)
    authenticator = auth.Authenticator(accounts, keys, ports, principals)
    groups = auth.Groups(store, ports, accounts)
    policies = auth.Policies(store, ports, accounts, groups, lambda box: is_current(catalog, box))
    cache = TreeCache(options.cache_bytes)
    owner = Options(
        owner=ports.ids.fresh(),
        deleted_refs_ms=options.deleted_days * DAY_MS,
        tables_ms=options.tables_days * DAY_MS,
    )
    objectstore = options.objects_options

    if aside is not None:
        metrics.aside = aside.counts

    def make_versions(uid: RepositoryUid, namespace: ObjectStore, salt: str) -> Versions:
        trees = Trees(namespace, cache, ports, salt=salt)
        lay_aside = None if aside is None else partial(aside.lay, (uid, namespace.uri, salt))
        return Versions(
            uid=uid,
            store=store,
            objectstore=namespace,
            trees=trees,
            ports=ports,
            options=owner,
            lay_aside=lay_aside,
        )

    presign = options.presign and options.blockstore == "s3"
    drain, reads = Drain(), ScriptReads()
    catalog = reads.catalog = Catalog(
        store=store,
        ports=ports,
        open_namespace=namespace_opener(options),
        make_versions=make_versions,
        options=CatalogOptions(trust_denials=options.trust_denials, deleted_days=options.deleted_days),
        make_hooks=make_hooks(options.hooks, reads, drain.keep),
    )
    hard_deleting = HardDeleting(catalog, objectstore)
    authorizer = auth.Authorizer(policies, ports, partial(look, catalog))

    def forget() -> None:
        authenticator.forget_all()
        authorizer.forget_all()

    metrics.sources.append(hard_deleting.samples)
    return AppState(
        store=store,
        ports=ports,
        catalog=catalog,
        drain=drain,
        accounts=accounts,
        groups=groups,
        policies=policies,
        principals=principals,
        tickets=auth.Tickets(store, ports, accounts),
        sandboxes=Sandboxes(store, ports, accounts, catalog, forget, books=Books(catalog.meter)),
        providers=Providers(options.providers, ports.clock),
        authenticator=authenticator,
        collectors=Collectors({**os.environ, **environment_of(objectstore)}, authenticator),
        authorizer=authorizer,
        storage=storage_config(options.blockstore, presign=presign),
        version=version("lakebed"),
        data_dir=options.data_dir,
        audit=AuditLog(options.data_dir, options.audit, keep_days=options.audit_days, is_printed=options.audit_printed),
        continuation_key=keys.continuation_key,
        certificate_key=keys.certificate_key,
        login_key=keys.login_key,
        setup_secret=options.setup_secret,
        proof_key=options.proof_key,
        presign_s=PRESIGN_S if presign else None,
        database=options.metadata_uri.partition(":")[0],
        hard_deleting=hard_deleting,
        eventing=Eventing(catalog, keys, options.hooks, ports, options.brokers),
        s3=options.s3,
        aside=aside,
        metrics=metrics,
    )


def storage_config(blockstore: str, *, presign: bool) -> StorageConfig:
    # Clients of the contract call this block store `azure`, and use the https URLs of its storage accounts.
    scheme = "(az|https)" if blockstore == "az" else blockstore
    return StorageConfig(
        blockstore_type="azure" if blockstore == "az" else blockstore,
        blockstore_namespace_example=f"{blockstore}://example-bucket/",
        validity_regex=f"^{scheme}://",
        default_namespace_prefix=f"{blockstore}://",
        import_support=True,
        import_validity_regex=f"^{scheme}://",
        pre_sign_support=presign,
        pre_sign_multipart_upload=presign,
    )


def create_app(state: AppState, *, trusted_user: str = "") -> App:
    """Give each operation of the table its handler.

    `trusted_user`: run every request as this user, with all permissions. Use it for an application that only its own
    process reaches, and whose user can open the data folder.
    """
    routes = [route for file in RESOURCES for resource in resources_of(file) for route in resource(state).routes()]
    missing = set(table.OPERATIONS) - {route.operation for route in routes}
    assert not missing, missing
    return App(state, routes, auth.Identity(user_id=trusted_user) if trusted_user else None)


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lakebed</title></head>
<body><h1>Lakebed</h1>
<p>This server keeps versions of a data lake. Its API is below <code>/api/v1</code>,
described in <a href="/openapi.json">openapi.json</a>.
The <code>lakebed</code> command and the <code>lakefs</code> packages speak it.</p>
</body></html>
"""


class App:
    """The ASGI application. It has no lifespan: the opener of the state closes it."""

    def __init__(self, state: AppState, routes: Sequence[Route], trusted: auth.Identity | None = None) -> None:
        self._state = state
        self._router = Router(route for route in routes if route.operation.root == operations.API_ROOT)
        self._tables = iceberg.CatalogDoor(
            state, [route for route in routes if route.operation.root != operations.API_ROOT], trusted
        )
        self._web = Door(state, routes, trusted)
        self._agents = AgentsDoor(state, routes, trusted)
        self._trusted = trusted
        self._small_s = 0.0
        self._probe = Probe(state)
        self._survey = Survey(state)
        self._s3 = Gateway(state, state.s3)
        state.metrics.gauges["lakebed_commit_queue"] = state.catalog.count_waiting
        state.metrics.gauges["lakebed_audit_failures_total"] = lambda: state.audit.failures
        state.metrics.gauges["lakebed_draining"] = lambda: float(state.drain.is_draining)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        metrics, began_s = self._state.metrics, time.perf_counter()
        request = self._request(scope, receive)
        request_id = _request_id(request)
        CALLER.set(request)
        REQUEST_ID.set(request_id)  # The request's task is its context: nothing needs to be set back.
        response: Response | None = None
        metrics.in_progress += 1
        try:
            response = await self._answer_or_error(request, request_id)
            # Write the audit line before the answer, so that each acknowledged change has one even if this process
            # dies.
            self._state.audit.note(request, request_id, response.status_code)
            response.raw_headers.append((b"x-request-id", request_id.encode()))
            if type(request) is S3Request:
                response.raw_headers.append((b"x-amz-request-id", request_id.encode()))
            if self._state.drain.is_draining or request.may_leave_its_body():
                # Draining: make the client open its next connection to another process. Otherwise: the client may or
                # may not send the announced body, so the server could not find the start of the next request.
                response.raw_headers.append((b"connection", b"close"))
            await response(scope, receive, send)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # The drain cut the request off. The connection is closed, and the drain logs the number of such requests.
            if not self._state.drain.is_over:
                raise
        finally:
            metrics.in_progress -= 1
            self._note_answered(request, 499 if response is None else response.status_code, began_s)

    def _request(self, scope: Scope, receive: Receive) -> RestRequest:
        """Choose the door. Most requests are the API's, and need not ask at the others."""
        if scope["raw_path"].startswith(API_ROOT) and not self._s3.has_places and not has_s3_signature(scope):
            return RestRequest(scope, receive)
        if self._s3.is_asked(scope):
            return self._s3.request(scope, receive)
        if self._tables.is_asked(scope):
            return self._tables.request(scope, receive)
        return RestRequest(scope, receive)

    async def _answer_or_error(self, request: RestRequest, request_id: str) -> Response:
        try:
            # Compare the exact type: `isinstance` would check the abstract base classes of Starlette at each request.
            if type(request) is S3Request:
                return await self._s3.answer(request)
            if type(request) is iceberg.CatalogRequest:
                return await self._tables.answer(request)
            return await self._answer(request)
        except LakebedError as error:
            request.refusal = str(error) if isinstance(error, Denied) else ""
            warn_of_wrong_secret(logger, error, request.scope.get("client"), partial(_shown, request))
            if isinstance(request, S3Request):
                return self._s3.error(error, request, request_id, partial(_shown, request))
            if isinstance(request, iceberg.CatalogRequest):
                return self._tables.error(error, partial(_shown, request))
            response = error_response(error, partial(_shown, request))
            if isinstance(error, auth.NotPermitted) and request.operation in table.CONTRACT:
                response.status_code = 401  # The contract keeps 403 for protected branches.
            return response
        except ClientDisconnect:
            raise
        except Exception:  # the outermost handler: a bug of ours must not close the connection without an answer
            logger.exception("unexpected error in %s", _shown(request))
            if isinstance(request, S3Request):
                return self._s3.unexpected(request, request_id)
            if isinstance(request, iceberg.CatalogRequest):
                return self._tables.unexpected()
            return message_response(500, "internal server error")

    def _note_answered(self, request: RestRequest, status: int, began_s: float) -> None:
        """Count the request, and log it if access logging is on. 499: the client disconnected before its answer."""
        seconds = time.perf_counter() - began_s
        operation = request.shown_operation
        self._state.metrics.count_request(operation, status, seconds)
        if access.isEnabledFor(logging.INFO):
            identity = getattr(request, "identity", None)
            fields = {"method": request.scope["method"], "path": request.scope["raw_path"].decode("latin-1")}
            log_access(
                {**fields, "operation": operation, "user": identity and identity.user_id}
                | {"status": status, "seconds": round(seconds, 6)}
            )

    async def _answer(self, request: RestRequest) -> Response:
        path: bytes = request.scope["raw_path"]
        if not path.startswith(API_ROOT):
            return await self._answer_outside(request, path)
        route = self._route_of(request)
        operation = route.operation
        if self._trusted is not None:
            request.identity, request.permissions = self._trusted, auth.Permissions.everything(self._trusted.user_id)
        elif route.gate is not None:
            authorization, session = _proofs(request)
            if authorization is None and request.scope["method"] not in {"GET", "HEAD"}:
                # A browser adds the cookie to requests from any page. It adds an Authorization header to none.
                check_origin(request)
            request.identity = await self._state.authenticator.authenticate(authorization, session)
            if request.identity.delegation is not None:
                await check_runs(self._state.catalog, request.identity.delegation)
            request.permissions = await permissions_of(self._state, request)
        aside, began_s = self._state.aside, time.monotonic()
        if aside is not None and operation in LARGE:
            await route.admit(request)
            if aside.is_up and (body := await self._carried_aside(aside, route, request)) is not None:
                return JsonResponse(body, operation.status)
            result = await route.run(request)
            if began_s < self._small_s + ALONE_S:
                aside.wish(time.monotonic() - began_s)
        else:
            self._small_s = began_s
            result = await route.carry_out(request)
        return result if isinstance(result, Response) else answer(result, operation.status)

    async def _carried_aside(self, aside: Aside, route: Route, request: RestRequest) -> bytes | None:
        """Let another process run an admitted request, if this one knows that the caller may see all of the answer.

        None: do it here.
        """
        is_page = not route.takes_record
        # A page that no small request waits for costs a quarter less here.
        if is_page and (request.amount() < LARGE_PAGE or time.monotonic() > self._small_s + ALONE_S):
            return None
        if not may_leave(route.operation, request.permissions):
            return None
        scope = request.scope
        asked = Carry(
            user_id=request.identity.user_id,
            delegation=request.identity.delegation,
            method=scope["method"],
            raw_path=scope["raw_path"],
            query_string=scope["query_string"],
            headers=[pair for pair in scope["headers"] if pair[0] not in PROOFS],
            client=scope["client"],
            body=None if is_page else msgspec.json.encode(await request.record(route.operation)),
        )
        return await aside.carry(asked)

    async def carry(self, asked: Carry) -> bytes:
        """Carry out a request that another process got, and return the body of its answer.

        That process decided what the caller may see: what this one remembers of policies may be some seconds old.

        Raises:
            LakebedError: as the handler.
        """
        parts = {field: getattr(asked, field) for field in ("method", "raw_path", "query_string", "headers", "client")}

        async def receive() -> Message:
            return {"type": "http.request", "body": asked.body or b""}

        request = RestRequest({"type": "http", "scheme": "http", **parts}, receive)
        CALLER.set(request)
        route = self._route_of(request)
        request.identity = auth.Identity(user_id=asked.user_id, delegation=asked.delegation)
        request.permissions = auth.Permissions.everything(asked.user_id)
        return bytes(answer(await route.carry_out(request), route.operation.status).body)

    def _route_of(self, request: RestRequest) -> Route:
        """Find the route of an API request, and note in the request what it found."""
        path: bytes = request.scope["raw_path"]
        route, request.args = self._router.find(request.scope["method"], path[len(API_ROOT) :])
        request.operation, request.parameters = route.operation, route.parameters
        return route

    @cached_property
    def _openapi(self) -> bytes:
        """Return the public document, encoded once: encoding takes 26 ms, and the route needs no login."""
        return bytes(answer(openapi.document(self._state.version)).body)

    async def _answer_outside(self, request: RestRequest, path: bytes) -> Response:
        if path == b"/_health":
            return alive(self._state.proof_key, request.headers.get(NONCE_HEADER, ""))
        if path == b"/openapi.json":
            return Response(self._openapi, media_type="application/json")
        if path == b"/_ready":
            readiness = await self._probe.look()
            return answer(readiness, 200 if readiness.ready else 503)
        if path == b"/metrics":
            return await self._answer_metrics(request)
        if path == AGENTS_PATH:
            return await self._agents.answer(request)
        if self._web.is_asked(request):
            return await self._web.answer(request)
        if request.scope["method"] not in {"GET", "HEAD"}:
            raise NoSuchEndpoint("invalid API endpoint")
        # Answer with a page: clients use it to distinguish a wrong endpoint from wrong credentials.
        return Response(_PAGE, media_type="text/html")

    async def _answer_metrics(self, request: RestRequest) -> Response:
        request.identity = await self._state.authenticator.authenticate(*_proofs(request))
        (await permissions_of(self._state, request)).require("ops:ReadMetrics", "*", auth.NO_REF)
        samples = [*self._state.metrics.of_all_workers(), *await self._survey.samples()]
        return Response(as_text(samples), media_type=CONTENT_TYPE)


def _proofs(request: RestRequest) -> tuple[bytes | None, bytes | None]:
    """Return the Authorization header, or else the session cookie."""
    authorization = request.raw_header(b"authorization")
    return authorization, request.cookie(auth.SESSION_COOKIE) if authorization is None else None


def _shown(request: RestRequest) -> str:
    """Describe a request for the log in one line, with unprintable characters of its path escaped."""
    identity = getattr(request, "identity", None)
    user = "nobody" if identity is None else identity.user_id
    path = request.scope["raw_path"].decode("latin-1")
    return f"{request.scope['method']} {path!a} of user {user!a}, request {REQUEST_ID.get()}"


_PROCESS: Final = secrets.token_hex(8)
_NUMBERS: Final = itertools.count(1)
"""With `_PROCESS`, makes a unique id for each request of any process, without a system call for random bytes."""


def _request_id(request: RestRequest) -> str:
    """Return the caller's own request id, so that it can find its request in logs, or a fresh id."""
    given = request.header(b"x-request-id")
    if given is not None and given.isascii() and given.isprintable() and len(given) <= 128:
        return given
    return f"{_PROCESS}{next(_NUMBERS):016x}"
