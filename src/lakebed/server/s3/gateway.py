"""The S3 gateway: one request from its signature to its answer, beside the REST door and with the same parts.

Order of steps: read the path, read the signature and check its time, find its caller, find the operation, then run the
handler, which first checks the permissions of the table. One function turns errors into S3's XML.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope

from lakebed.auth import SESSION_COOKIE, NotAuthenticated, UnknownAccessKey
from lakebed.base import LakebedError
from lakebed.catalog import RepositoryNotFound
from lakebed.server.http.gate import permissions_of
from lakebed.server.http.requests import check_origin, has_s3_signature
from lakebed.server.state import AppState
from lakebed.versions import BranchNotFound

from . import operations
from .buckets import Buckets
from .configurations import Configurations
from .errors import NotImplementedByName, S3Error, as_s3, error_document, error_response
from .multipart import MultipartUploads
from .objects import Objects
from .operations import S3Operation
from .options import S3Options
from .requests.bodies import check_word
from .requests.requests import S3Request, bucket_of_host
from .requests.signatures import read_signature

BROWSER_KEY: Final = "use_swagger_credentials"
"""The web pages of the contract's server query objects in the browser with DuckDB. It signs with this access key and a
secret that means nothing. The proof is the session cookie."""

Handler: TypeAlias = Callable[[S3Request], Awaitable[Response]]


class Gateway:
    def __init__(self, state: AppState, options: S3Options) -> None:
        self._state = state
        self._options = options
        self.has_places: Final = bool(options.ports or options.domains)
        """True if a request can be S3's by its port or host."""
        buckets, objects = Buckets(state, options), Objects(state, options)
        multipart = MultipartUploads(state, options, objects)
        self._handlers: Final[Mapping[S3Operation, Handler]] = {
            **buckets.handlers,
            **objects.handlers,
            **multipart.handlers,
            **Configurations(buckets, objects).handlers,
        }
        assert set(self._handlers) == set(operations.OPERATIONS)

    def is_asked(self, scope: Scope) -> bool:
        """Return whether a request is S3's: by the port that it came to, its signature or its host.

        Without `has_places`, no request below the API's root is S3's unless it is signed.
        """
        options = self._options
        if options.ports and (scope.get("server") or ("", 0))[1] in options.ports:
            return True
        if has_s3_signature(scope) or _is_form_for_bucket(scope):
            return True
        return bool(options.domains) and bucket_of_host(_host(scope), options.domains) is not None

    def request(self, scope: Scope, receive: Receive) -> S3Request:
        return S3Request(scope, receive, self._options)

    async def answer(self, request: S3Request) -> Response:
        """Run the request, and return the handler's answer.

        Raises:
            LakebedError: see `error`.
        """
        request.parse()
        if request.scope["method"] == "POST" and _is_form(request.scope):
            # Its signature is a field of the body, so its caller would be unknown here.
            raise NotImplementedByName("PostObject")
        await self._authenticate(request)
        if f"{request.resource}/".startswith("/api/v1/") and not self._options.repository:
            await self._check_endpoint()
        found = operations.find(request)
        request.check_owner()
        request.operation, request.operation_name = found.operation, f"s3:{found.name}"
        request.what = request.place().names()
        try:
            return await self._handlers[found](request)
        except BranchNotFound as error:
            raise await self._about(request, error) from error

    async def _check_endpoint(self) -> None:
        """Explain a request to the API's URL by an S3 client."""
        try:
            await self._state.catalog.get("api")
        except RepositoryNotFound as error:
            text = "The endpoint of S3 is the server's URL without /api/v1, which belongs to its own API."
            raise S3Error("NoSuchBucket", text) from error

    async def _about(self, request: S3Request, error: BranchNotFound) -> LakebedError:
        """Return the error to answer with: tags and commits exist but are read-only. A handler checks the permission
        to write before it looks for a branch, so this error reveals nothing to other callers.
        """
        place = request.place()
        if request.scope["method"] in {"GET", "HEAD"} or error.facts.get("branch") != place.ref:
            return error
        try:
            repository = await self._state.catalog.get(place.repository)
            await repository.versions.refs.resolve(place.ref)
        except LakebedError:
            return error
        method = request.scope["method"]
        text = f"{place.ref} is no branch: only branches can be written"
        return S3Error("MethodNotAllowed", text, Method=method, ResourceType=request.level.upper())

    async def _authenticate(self, request: S3Request) -> None:
        asked = request.as_signed()
        signed = read_signature(asked, request.bucket_of_host)
        check_word(signed.payload)
        signed.check_time(self._state.ports.clock.now_ms() // 1000)
        session = request.cookie(SESSION_COOKIE) if signed.access_key_id == BROWSER_KEY else None
        # A link cannot set this header, and the browser asks before a foreign page may. So no link acts for the user.
        if session is not None and asked.header(b"authorization") is not None:
            check_origin(request)
            request.identity = await self._state.authenticator.authenticate(None, session)
            if not request.identity.session:
                raise NotAuthenticated("only a login may take the place of a signature")
            # Signatures of chunks match only where the page signs them with an empty secret. They prove nothing here.
            request.key = signed.key("")
            # A random number, so that the browser does not answer from its cache.
            request.asked_for = {name: value for name, value in request.asked_for.items() if name != "r"}
        else:
            request.through = f"key {signed.access_key_id[:200]}"
            try:
                request.identity, request.key = await self._state.authenticator.check_signature(
                    signed.access_key_id, lambda key: signed.is_of(key, asked), make_key=signed.key, scope=signed.scope
                )
            except UnknownAccessKey as error:
                raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=signed.access_key_id[:200]) from error
        request.permissions = await permissions_of(self._state, request)
        request.signed = signed

    def error(self, error: LakebedError, request: S3Request, request_id: str, shown: Callable[[], str]) -> Response:
        if as_s3(error).status == 403:
            request.refusal = str(error)
        return error_response(error, request_id=request_id, resource=request.resource, shown=shown)

    def unexpected(self, request: S3Request, request_id: str) -> Response:
        """Return the answer for an unexpected error, which the caller has logged."""
        return error_document(S3Error("InternalError"), request_id=request_id, resource=request.resource)


def _is_form(scope: Scope) -> bool:
    """Return whether a request is a form with a file, as a browser sends it."""
    return any(
        name == b"content-type" and value.lower().startswith(b"multipart/form-data") for name, value in scope["headers"]
    )


def _is_form_for_bucket(scope: Scope) -> bool:
    """Return whether a request is a form to a bucket: S3's PostObject, which is not signed in its headers."""
    return scope["method"] == "POST" and scope["raw_path"].strip(b"/").count(b"/") == 0 and _is_form(scope)


def _host(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"host":
            return str(value, "latin-1")
    return ""
