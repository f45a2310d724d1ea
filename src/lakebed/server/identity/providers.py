"""Logins with an identity of another provider: OpenID Connect, and roles of AWS.

A provider proves who the caller is, as the id of an external principal. `lakebed.auth.Principals` maps the principal
to a user. All providers are off unless the operator sets them (docs/guide/users.md, "Other identities").

OpenID Connect: the caller sends an id token, or a code that the server exchanges for one. The token's signature,
issuer, audience and times are checked. The principal is `ISSUER#SUBJECT`.
AWS: the caller sends a signed GetCallerIdentity request, which the server forwards because only AWS can check it.
The principal is the caller's ARN without `arn:` and without the session name.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlencode
from xml.etree import ElementTree as ET

import msgspec

from lakebed.auth import NotAuthenticated
from lakebed.base import Clock, Invalid, Later, Unavailable, in_words
from lakebed.operations import API_ROOT, installation

if TYPE_CHECKING:
    import httpx
    import jwt
else:  # Both are slow to import, and a server without a provider needs neither.
    httpx = Later("httpx")
    jwt = Later("jwt")

logger = logging.getLogger(__name__)

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Public-key algorithms only: a secret that the provider shares with its clients proves nothing."""
LEEWAY_S: Final = 60
"""The allowed clock difference of two machines."""
ANSWER_BYTES_MAX: Final = 1 << 20
DISCOVERY_KEPT_MS: Final = 3_600_000
KEYS_KEPT_MS: Final = 3_600_000
KEYS_ASKED_MS: Final = 60_000
"""Read the provider's keys at most this often, even if many tokens name unknown keys."""
TIMEOUT_S: Final = 10.0
AT_ONCE: Final = 8
WAITING_MAX: Final = 64
SERVER_HEADER: Final = "x-lakefs-server-id"
CALLBACK: Final = API_ROOT + installation.OAUTH_CALLBACK.path
_PLAIN_URL: Final = re.compile(r"https?://[^\s?#@\\]+")
_STS_HOST: Final = re.compile(r"sts(\.[a-z]{2}(-[a-z]{1,20}){1,3}-\d)?\.amazonaws\.com")
"""The host of a region, or without a region. `sts.s3.amazonaws.com` is a customer's bucket, and must not match."""
_SAFE: Final = re.compile(r"[A-Za-z0-9/+=_.:%-]{0,8192}")
_ARN: Final = re.compile(r"arn:(aws[a-z-]*:(?:sts|iam)::\d{12}:.{1,900})", re.DOTALL)


class InvalidProvider(Invalid):
    """A setting of a provider is missing or invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """`oidc_issuer`: empty turns OpenID Connect off. `aws_server_id`: empty turns AWS off.

    The secret is used only to exchange codes.
    """

    oidc_issuer: str = ""
    oidc_audience: str = ""
    oidc_client_secret: str = field(default="", repr=False)
    # The URL of `oauthCallback` for browsers, as the provider knows it. Empty turns browser logins off.
    oidc_redirect_uri: str = ""
    aws_server_id: str = ""
    aws_sts_endpoint: str = ""


def provider_options(environment: Mapping[str, str]) -> ProviderOptions:
    """Read LAKEBED_OIDC_ISSUER, _AUDIENCE, _CLIENT_SECRET, _REDIRECT_URI, LAKEBED_AWS_SERVER_ID and _STS_ENDPOINT.

    Raises:
        InvalidProvider: a setting is missing, or its URL is not allowed.
    """
    options = ProviderOptions(
        oidc_issuer=environment.get("LAKEBED_OIDC_ISSUER", ""),
        oidc_audience=environment.get("LAKEBED_OIDC_AUDIENCE", ""),
        oidc_client_secret=environment.get("LAKEBED_OIDC_CLIENT_SECRET", ""),
        oidc_redirect_uri=environment.get("LAKEBED_OIDC_REDIRECT_URI", ""),
        aws_server_id=environment.get("LAKEBED_AWS_SERVER_ID", ""),
        aws_sts_endpoint=environment.get("LAKEBED_AWS_STS_ENDPOINT", ""),
    )
    if bool(options.oidc_issuer) != bool(options.oidc_audience):
        raise InvalidProvider("LAKEBED_OIDC_ISSUER and LAKEBED_OIDC_AUDIENCE belong together")
    for name, url in (
        ("LAKEBED_OIDC_ISSUER", options.oidc_issuer),
        ("LAKEBED_OIDC_REDIRECT_URI", options.oidc_redirect_uri),
        ("LAKEBED_AWS_STS_ENDPOINT", options.aws_sts_endpoint),
    ):
        if url and not _is_safe_url(url):
            raise InvalidProvider(f"{name} is {url!r}: it must be an https URL, or http on this machine")
    redirect = options.oidc_redirect_uri
    if redirect and not options.oidc_issuer:
        raise InvalidProvider("LAKEBED_OIDC_REDIRECT_URI needs LAKEBED_OIDC_ISSUER")
    if redirect and not (redirect.endswith(CALLBACK) and _PLAIN_URL.fullmatch(redirect)):
        raise InvalidProvider(
            f"LAKEBED_OIDC_REDIRECT_URI is {redirect!r}: it must end with {CALLBACK}, and have no query"
        )
    return options


def _is_safe_url(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    is_here = url.host in {"127.0.0.1", "localhost", "::1"}
    return bool(url.host) and (url.scheme == "https" or (url.scheme == "http" and is_here))


class _Discovery(msgspec.Struct, kw_only=True):
    """The provider's description of itself at `/.well-known/openid-configuration`. It is read again every hour."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ()

    @property
    def takes_secrets_in_a_header_only(self) -> bool:
        # Use the form if the provider names no method: most providers accept it.
        methods = self.token_endpoint_auth_methods_supported
        return "client_secret_basic" in methods and "client_secret_post" not in methods


class _Tokens(msgspec.Struct, kw_only=True):
    id_token: str


class _AwsRequest(msgspec.Struct, kw_only=True):
    """The parts of a signed GetCallerIdentity, as clients of the contract send them in base64."""

    method: str
    host: str
    region: str
    action: str
    date: str
    expiration_duration: str
    access_key_id: str
    signature: str
    signed_headers: list[str]
    version: str
    algorithm: str
    security_token: str | None = None


class _Turns:
    """Let a few requests run at once and some wait. Refuse the others.

    Raises:
        Unavailable: too many requests wait.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def __aenter__(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise Unavailable("too many logins with other identities at once")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free.release()


class Providers:
    """Ask the configured providers who a caller is. Make one for each process, and close it at the end."""

    def __init__(self, options: ProviderOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._opened: httpx.AsyncClient | None = None
        self._discovery: _Discovery | None = None
        self._discovery_ms = 0
        self._keys: dict[str, jwt.PyJWK] = {}
        self._keys_ms = 0
        # A login may cost a request to a provider, and needs no credentials. Separate turns: AWS logins delay no
        # others.
        self._turns, self._aws_turns = _Turns(), _Turns()

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    @property
    def _http(self) -> httpx.AsyncClient:
        """Make the client at the first request: it reads certificates for 50 ms, and most servers ask no provider."""
        if self._opened is None:
            self._opened = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)
        return self._opened

    async def identify(self, request: Mapping[str, Any]) -> str:
        """Return the principal that an identity request proves: `id_token`, or `identity_token` of AWS.

        Raises:
            Invalid: the request has neither token, or this server does not accept it.
            NotAuthenticated: the token is invalid.
            Unavailable: the provider does not answer.
        """
        if isinstance(token := request.get("id_token"), str):
            return await self._subject_of(token)
        if isinstance(token := request.get("identity_token"), str):
            return await self._aws_role(token)
        raise Invalid("an identity request has an id_token, or an identity_token of AWS")

    @property
    def redirect_uri(self) -> str:
        """Return the URL to which the provider sends browsers back; empty if browser logins are off."""
        return self._options.oidc_redirect_uri

    def is_issuer(self, named: str) -> bool:
        """Return whether an answer may come from our provider. Most answers name no issuer (RFC 9207)."""
        return named in {"", self._options.oidc_issuer}

    async def login_url(self, *, state: str, nonce: str, challenge: str) -> str:
        """Return the URL of the provider's login page. `challenge`: S256 of the verifier (RFC 7636).

        Raises:
            Invalid: browser logins are off, or the provider has no such page.
            Unavailable: the provider does not answer.
        """
        discovery = await self._discovered()
        if not self.redirect_uri:
            raise Invalid("this server begins no logins in a browser: LAKEBED_OIDC_REDIRECT_URI is not set")
        if not discovery.authorization_endpoint:
            raise Invalid("the provider of this server has no page for logins")
        query = {
            "response_type": "code",
            "client_id": self._options.oidc_audience,
            "redirect_uri": self.redirect_uri,
            "scope": "openid",
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return str(httpx.URL(discovery.authorization_endpoint).copy_merge_params(query))

    async def exchange(self, code: str, redirect_uri: str, *, verifier: str = "", nonce: str | None = None) -> str:
        """Return the principal for whom the provider of OpenID Connect issued this code.

        `verifier` and `nonce` belong to a login that `login_url` began. The token must be issued for that login.

        Raises:
            Invalid, NotAuthenticated, Unavailable: as `identify`.
        """
        discovery = await self._discovered()
        if not discovery.token_endpoint:
            raise Invalid("the provider of this server exchanges no codes")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        client, secret, headers = self._options.oidc_audience, self._options.oidc_client_secret, {}
        if secret and discovery.takes_secrets_in_a_header_only:
            # RFC 6749, 2.3.1: form-encode both before joining them.
            pair = f"{quote_plus(client)}:{quote_plus(secret)}"
            headers = {"authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
        else:
            form |= {"client_id": client, "client_secret": secret}
        data = {name: value for name, value in form.items() if value}
        answer = await self._ask("POST", discovery.token_endpoint, data=data, headers=headers)
        try:
            token = msgspec.json.decode(answer, type=_Tokens).id_token
        except msgspec.DecodeError as error:
            raise NotAuthenticated("the provider sent no id token") from error
        return await self._subject_of(token, nonce)

    async def _subject_of(self, token: str, nonce: str | None = None) -> str:
        """Check an id token, and return its principal. With a nonce, check that the token is for that login and
        server.
        """
        await self._discovered()
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid", ""))
            key = await self._key(key_id)
            # The time comes from the port. PyJWT reads the machine's clock, so it must not check the time.
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[name for name in ALGORITHMS if name == key.algorithm_name],
                audience=self._options.oidc_audience,
                issuer=self._options.oidc_issuer,
                options={
                    "require": ["exp", "iat", "sub", "aud", "iss"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise NotAuthenticated(f"bad id token: {error}") from error
        now_s = self._clock.now_ms() // 1000
        ends, begins = claims["exp"], max(_second(claims["iat"]), _second(claims.get("nbf", 0)))
        if now_s >= _second(ends) + LEEWAY_S or now_s < begins - LEEWAY_S:
            raise NotAuthenticated("the id token is over, or not valid yet")
        audience = self._options.oidc_audience
        if nonce is not None and (claims.get("nonce") != nonce or claims.get("azp", audience) != audience):
            raise NotAuthenticated("the id token was made for another login")
        return f"{self._options.oidc_issuer}#{claims['sub']}"

    async def _discovered(self) -> _Discovery:
        issuer = self._options.oidc_issuer
        if not issuer:
            raise Invalid("this server takes no id tokens: LAKEBED_OIDC_ISSUER is not set")
        now_ms = self._clock.now_ms()
        if self._discovery is None or not 0 <= now_ms - self._discovery_ms < DISCOVERY_KEPT_MS:
            body = await self._ask("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
            try:
                found = msgspec.json.decode(body, type=_Discovery)
            except msgspec.DecodeError as error:
                raise Unavailable(f"{issuer} does not describe itself as OpenID Connect wants: {error}") from error
            urls = [found.jwks_uri, found.authorization_endpoint, found.token_endpoint]
            if found.issuer != issuer or not all(_is_safe_url(url) for url in urls if url):
                raise Unavailable(f"{issuer} describes itself as {found.issuer!r}, or by URLs that are not https")
            self._discovery, self._discovery_ms = found, now_ms
        return self._discovery

    async def _key(self, key_id: str) -> jwt.PyJWK:
        """Return a key of the provider. Read the keys again for an unknown id, which may be a new key."""
        age_ms = self._clock.now_ms() - self._keys_ms
        if not 0 <= age_ms < KEYS_KEPT_MS or (key_id not in self._keys and age_ms >= KEYS_ASKED_MS):
            body = await self._ask("GET", (await self._discovered()).jwks_uri)
            try:
                found = jwt.PyJWKSet.from_json(body.decode(errors="replace")).keys
            except (jwt.PyJWTError, ValueError) as error:
                raise Unavailable(f"{self._options.oidc_issuer} has keys that make no sense: {error}") from error
            self._keys, self._keys_ms = {key.key_id or "": key for key in found}, self._clock.now_ms()
        if key_id not in self._keys:
            raise NotAuthenticated(f"the provider has no key {key_id!r}")
        return self._keys[key_id]

    async def _aws_role(self, token: str) -> str:
        """Send the caller's signed request to AWS, and return the principal of the caller.

        The signature covers a header with this server's name, so a request that was signed for another server is
        refused.
        """
        server = self._options.aws_server_id
        if not server:
            raise Invalid("this server takes no identities of AWS: LAKEBED_AWS_SERVER_ID is not set")
        try:
            asked = msgspec.json.decode(base64.b64decode(token, validate=True), type=_AwsRequest)
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            raise NotAuthenticated(f"bad identity token: {error}") from error
        parts = (
            asked.region,
            asked.date,
            asked.expiration_duration,
            asked.access_key_id,
            asked.signature,
            asked.version,
            asked.algorithm,
            asked.security_token or "",
        )
        if (
            (asked.method, asked.action) != ("POST", "GetCallerIdentity")
            or SERVER_HEADER not in [name.lower() for name in asked.signed_headers]
            or not all(_SAFE.fullmatch(part) for part in (*parts, *asked.signed_headers))
        ):
            raise NotAuthenticated(f"the identity token is no GetCallerIdentity whose signature covers {SERVER_HEADER}")
        endpoint = self._options.aws_sts_endpoint.rstrip("/") or f"https://{asked.host}"
        if not self._options.aws_sts_endpoint and not _STS_HOST.fullmatch(asked.host):
            raise NotAuthenticated(f"{asked.host} is no STS of AWS")
        query = {
            "Action": asked.action,
            "Version": asked.version,
            "X-Amz-Algorithm": asked.algorithm,
            "X-Amz-Credential": f"{asked.access_key_id}/{asked.date[:8]}/{asked.region}/sts/aws4_request",
            "X-Amz-Date": asked.date,
            "X-Amz-Expires": asked.expiration_duration,
            "X-Amz-SignedHeaders": ";".join(asked.signed_headers),
            **({"X-Amz-Security-Token": asked.security_token} if asked.security_token else {}),
            "X-Amz-Signature": asked.signature,
        }
        headers = {SERVER_HEADER: server, "host": asked.host}
        answer = await self._ask("POST", f"{endpoint}/?{urlencode(query)}", headers=headers, turns=self._aws_turns)
        return principal_of_arn(_arn_in(answer))

    async def _ask(
        self,
        method: str,
        url: str,
        *,
        data: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        turns: _Turns | None = None,
    ) -> bytes:
        """Send a request to a provider, and return the body of its answer.

        Raises:
            NotAuthenticated: the provider refuses the caller's proof.
            Unavailable: the provider does not answer, answers too much, or refuses this server.
        """
        host = httpx.URL(url).host
        try:
            async with turns or self._turns, self._http.stream(method, url, data=data, headers=headers) as response:
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise Unavailable(f"{host} answers with more than {ANSWER_BYTES_MAX >> 20} MiB")
        except httpx.HTTPError as error:
            raise Unavailable(f"{host} does not answer: {in_words(error)}") from error
        if b"invalid_client" in body and response.status_code in {400, 401}:
            logger.error("%s does not accept LAKEBED_OIDC_AUDIENCE and LAKEBED_OIDC_CLIENT_SECRET", host)
            raise Unavailable(f"{host} does not accept this server")
        if response.status_code != 429 and 400 <= response.status_code < 500 and method == "POST":
            raise NotAuthenticated(f"{host} refuses with {response.status_code}")
        if response.status_code != 200:
            raise Unavailable(f"{host} answers {response.status_code}")
        return body


def principal_of_arn(arn: str) -> str:
    """Return `aws:sts::123456789012:assumed-role/name` for an assumed role, `aws:iam::123456789012:user/name` for a
    user.
    """
    match = _ARN.fullmatch(arn)
    if match is None:
        raise NotAuthenticated(f"AWS answers with {arn!r}, which is neither a role nor a user")
    head, slash, rest = match[1].partition(":assumed-role/")
    return f"{head}{slash}{rest.split('/')[0]}" if slash else match[1]


def _arn_in(answer: bytes) -> str:
    # Entities let XML expand or read files. An answer of AWS has none.
    if b"<!" in answer:
        raise NotAuthenticated("AWS answers with a document that declares something")
    try:
        root = ET.fromstring(answer)  # noqa: S314  # declarations are refused above
    except ET.ParseError as error:
        raise Unavailable(f"AWS answers with no XML: {error}") from error
    return next((one.text or "" for one in root.iter() if one.tag.rpartition("}")[2] == "Arn"), "")


def _second(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        raise NotAuthenticated("the id token has a time that is not a number")
    return int(value)
