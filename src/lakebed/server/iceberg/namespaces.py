"""Settings, logins and namespaces of the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lakebed import wire
from lakebed.auth import NotAuthenticated, NotPermitted, decode_basic
from lakebed.base import Invalid
from lakebed.catalog import Repository
from lakebed.catalog.tables import Tables
from lakebed.operations import PUBLIC_BYTES_MAX, Operation
from lakebed.operations import tables as operations
from lakebed.server.http.gate import ask
from lakebed.server.http.requests import RestRequest, parse_query
from lakebed.server.http.routing import Resource, in_repository, serves

from .credentials import files_settings
from .places import inner, levels_of, names_in, namespace_of, note_of, shown, warehouse_of

PAGE_MAX: Final = 1000
_GRANTS: Final = ("client_credentials", "urn:ietf:params:oauth:grant-type:token-exchange")
ENDPOINTS: Final = [
    f"{one.method} /v1/{{prefix}}{one.path.removeprefix(operations.PREFIX)}"
    for one in vars(operations).values()
    if isinstance(one, Operation) and one.path.startswith(operations.PREFIX)
]
"""The routes of each catalog of a ref, as the standard names them."""


class OAuthRefused(Invalid):
    """A request for a token without success. It has a form of its own. `code`: a word of OAuth."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message, code=code)
        self.code = code
        self.status = status


class Namespaces(Resource):
    # Settings and logins

    @serves(operations.GET_CATALOG_CONFIG)
    async def settings(self, request: RestRequest) -> wire.CatalogSettings:
        warehouse = request.query("warehouse")
        overrides: dict[str, str] = {}
        if warehouse:
            place = warehouse_of(warehouse)
            await ask((operations.SHOWN,), request.permissions, {"repository": place.repository})
            repository = await self._catalog.get(place.repository)
            await repository.versions.refs.resolve(place.ref)
            overrides["prefix"] = place.prefix
        defaults = {
            **files_settings(request),
            "oauth2-server-uri": f"{str(request.base_url).rstrip('/')}/iceberg/v1/oauth/tokens",
            # Clients in Java send it with each request then. Those in Python and DuckDB do so by themselves.
            "header.X-Iceberg-Access-Delegation": "vended-credentials",
        }
        return wire.CatalogSettings(defaults=defaults, overrides=overrides, endpoints=ENDPOINTS)

    @serves(operations.LOG_IN_TO_CATALOG)
    async def log_in(self, request: RestRequest) -> wire.CatalogToken:
        """Exchange a key pair for a token of the API, which every request of the catalog may carry.

        Raises:
            OAuthRefused: the pair is missing or wrong, or another grant is asked for.
        """
        form = parse_query(await request.small_body(PUBLIC_BYTES_MAX))
        fields = {name: values[0] for name, values in form.items()}
        if fields.get("grant_type") not in _GRANTS:
            raise OAuthRefused("unsupported_grant_type", f"grant_type is one of {', '.join(_GRANTS)}")
        authenticator, now_s = self._state.authenticator, self._state.ports.clock.now_ms() // 1000
        if fields["grant_type"] != _GRANTS[0]:
            # A client wants its token to last longer: ours lasts a week, so it gets the same one.
            token = fields.get("subject_token", "")
            try:
                request.identity = await authenticator.authenticate(f"Bearer {token}".encode(), None)
            except NotAuthenticated as error:
                raise OAuthRefused("invalid_grant", "the token to exchange does not count", 401) from error
            return wire.CatalogToken(access_token=token, expires_in=3600)
        try:
            key, secret = _pair(request, fields)
            request.through = f"key {key[:200]}"
            token, expires_s = await authenticator.log_in(key, secret)
        except NotAuthenticated as error:
            raise OAuthRefused(
                "invalid_client", "client_id and client_secret are an access key and its secret", 401
            ) from error
        return wire.CatalogToken(access_token=token, expires_in=expires_s - now_s)

    @serves(operations.LIST_CATALOGS)
    async def list_catalogs(self, request: RestRequest) -> wire.NamespaceList:
        """List what the caller may read: repositories, or the branches of one."""
        parent, after, limit = levels_of(request.query("parent")), request.query("pageToken"), limit_of(request)
        if not parent:
            found, has_more = await self._catalog.list(prefix="", after=after, limit=limit)
            visible: list[list[str]] = [[name] for name, _ in found if await _is_shown(request, name)]
            return wire.NamespaceList(namespaces=visible, next_page_token=found[-1][0] if has_more else None)
        if len(parent) == 1:
            await ask((operations.SHOWN, operations.BRANCHES), request.permissions, {"repository": parent[0]})
            repository = await self._catalog.get(parent[0])
            branches, has_more = await repository.versions.refs.list_branches(prefix="", after=after, limit=limit)
            hidden = await repository.settings.hidden_branches()
            visible = [[repository.id, each.name] for each in branches if each.name not in hidden]
            return wire.NamespaceList(namespaces=visible, next_page_token=branches[-1].name if has_more else None)
        names = {"repository": parent[0], "ref": parent[1]}
        await ask(operations.LIST_NAMESPACES.permissions or (), request.permissions, names)
        repository = await self._catalog.get(parent[0])
        return await self._page(request, repository.tables, parent[1], parent[2:], outer=parent[:2])

    # Namespaces

    @in_repository(operations.LIST_NAMESPACES)
    async def list(self, request: RestRequest, repository: Repository) -> wire.NamespaceList:
        parent = levels_of(request.query("parent"))
        if parent:
            await repository.tables.namespace(request.args[1], parent)
        return await self._page(request, repository.tables, request.args[1], parent)

    async def _page(
        self, request: RestRequest, tables: Tables, ref: str, parent: tuple[str, ...], outer: Sequence[str] = ()
    ) -> wire.NamespaceList:
        after, limit = request.query("pageToken"), limit_of(request)
        found, has_more = await tables.namespaces(ref, parent, after=after, limit=limit)
        names = [[*outer, *each] for each in found]
        return wire.NamespaceList(namespaces=names, next_page_token=found[-1][-1] if has_more else None)

    @in_repository(operations.CREATE_NAMESPACE)
    async def create(
        self, request: RestRequest, repository: Repository, body: wire.NamespaceProperties
    ) -> wire.NamespaceProperties:
        branch, namespace = request.args[1], inner(request, body.namespace)
        await ask((operations.SETS,), request.permissions, names_in(request, namespace))
        await repository.tables.start()
        note = note_of(request, f"Create namespace {'.'.join(namespace)}")
        await repository.tables.create_namespace(branch, namespace, body.properties, note)
        return wire.NamespaceProperties(namespace=shown(request, namespace), properties=body.properties)

    @in_repository(operations.LOAD_NAMESPACE)
    async def load(self, request: RestRequest, repository: Repository) -> wire.NamespaceProperties:
        ref, namespace = request.args[1], namespace_of(request)
        if namespace:
            properties = dict(await repository.tables.namespace(ref, namespace))
        else:
            properties = {}
            if ref:
                await repository.versions.refs.resolve(ref)
        return wire.NamespaceProperties(namespace=shown(request, namespace), properties=properties)

    @in_repository(operations.NAMESPACE_EXISTS)
    async def exists(self, request: RestRequest, repository: Repository) -> None:
        await self.load(request, repository)

    @in_repository(operations.DROP_NAMESPACE)
    async def drop(self, request: RestRequest, repository: Repository) -> None:
        branch, namespace = request.args[1], namespace_of(request)
        note = note_of(request, f"Drop namespace {'.'.join(namespace)}")
        await repository.tables.drop_namespace(branch, namespace, note)

    @in_repository(operations.UPDATE_NAMESPACE)
    async def update(
        self, request: RestRequest, repository: Repository, body: wire.NamespaceChange
    ) -> wire.NamespaceChanged:
        branch, namespace = request.args[1], namespace_of(request)
        removals, updates = body.removals or [], body.updates or {}
        if both := sorted(updates.keys() & set(removals)):
            raise Invalid(f"property {both[0]!a} is to be set and to be removed")

        def changed(before: Mapping[str, str]) -> Mapping[str, str]:
            return {name: value for name, value in before.items() if name not in removals} | updates

        note = note_of(request, f"Set properties of namespace {'.'.join(namespace)}")
        before = await repository.tables.change_namespace(branch, namespace, changed, note)
        return wire.NamespaceChanged(
            updated=list(updates),
            removed=[name for name in removals if name in before],
            missing=[name for name in removals if name not in before],
        )


async def _is_shown(request: RestRequest, repository: str) -> bool:
    try:
        await ask((operations.SHOWN,), request.permissions, {"repository": repository})
    except NotPermitted:
        return False
    return True


def limit_of(request: RestRequest) -> int:
    return max(1, min(request.integer("pageSize", PAGE_MAX), PAGE_MAX))


def _pair(request: RestRequest, fields: dict[str, str]) -> tuple[str, str]:
    """Return the key pair of the form, or of a Basic header, where OAuth allows it, too."""
    if "client_secret" in fields:
        return fields.get("client_id", ""), fields["client_secret"]
    scheme, _, proof = (request.raw_header(b"authorization") or b"").partition(b" ")
    if scheme.lower() == b"basic":
        return decode_basic(proof)
    raise OAuthRefused("invalid_client", "client_id and client_secret are missing", 401)
