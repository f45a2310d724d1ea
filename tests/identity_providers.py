"""A provider of OpenID Connect and an STS of AWS, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

ROLE: Final = "arn:aws:sts::123456789012:assumed-role/etl/i-0abc"


class Provider:
    """A provider of OpenID Connect and an STS in one: signs tokens, and answers what it was asked."""

    def __init__(self, server_id: str = "lake.example") -> None:
        self.server_id = server_id
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.key_id = "one"
        self.asked: list[str] = []
        self.server_ids: list[str | None] = []
        self.id_token = ""
        self.refusal: dict[str, str] | None = None
        self.sts_answers = threading.Event()
        """Cleared, the STS keeps those waiting who ask."""
        self.sts_answers.set()
        self.more: dict[str, Any] = {}
        """What the provider says of itself, beside its addresses."""
        self.clients: list[tuple[str | None, str | None, str | None]] = []
        """How each exchange proved who asks: header, id and secret of the form."""
        self.page = "page"
        self.made_s = int(time.time())
        self.login: dict[str, str] = {}
        """What the page for logins was asked with, last."""
        self.claims: dict[str, Any] = {}
        """Of tokens for logins at that page, beside the nonce."""
        self.answers: dict[str, str] = {}
        """Of that page, beside the state."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                if self.path.endswith("openid-configuration"):
                    pages = {
                        "jwks_uri": "keys",
                        "authorization_endpoint": f"{provider.page}?tenant=one",
                        "token_endpoint": "token",
                    }
                    own = {name: f"{provider.url}/{page}" for name, page in pages.items()}
                    self.answer({"issuer": provider.url, **own, **provider.more})
                elif self.path.startswith(f"/{provider.page}?"):
                    self.send_response(302)
                    self.send_header("location", provider.log_in(urlsplit(self.path).query))
                    self.send_header("content-length", "0")
                    self.end_headers()
                else:
                    self.answer({"keys": [provider.public()]})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"] or 0)).decode()
                provider.asked.append(self.path)
                if provider.refusal is not None:
                    self.answer(provider.refusal, 401)
                    return
                if self.path == "/token":
                    form = {name: value for name, [value] in parse_qs(body).items()}
                    sent = self.headers["authorization"], form.get("client_id"), form.get("client_secret")
                    provider.clients.append(sent)
                    is_right = provider.is_right(form)
                    self.answer({"id_token": provider.id_token} if is_right else {}, 200 if is_right else 400)
                    return
                provider.sts_answers.wait()
                provider.server_ids.append(self.headers["x-lakefs-server-id"])
                is_ours = self.headers["x-lakefs-server-id"] == provider.server_id
                self.answer(
                    f"<R xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><Arn>{ROLE}</Arn></R>",
                    200 if is_ours else 403,
                )

            def answer(self, body: object, status: int = 200) -> None:
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def log_in(self, query: str) -> str:
        """Let the person in who sits there, and return where the browser goes back to."""
        self.login = {name: value for name, [value] in parse_qs(query).items()}
        self.id_token = self.token(**{"nonce": self.login["nonce"], **self.claims})
        back = {"state": self.login["state"], **(self.answers or {"code": "right"})}
        return f"{self.login['redirect_uri']}?{urlencode(back)}"

    def is_right(self, form: dict[str, str]) -> bool:
        """Check a code, and its verifier where the page was asked with a challenge (RFC 7636)."""
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return form["code"] == "right" and self.login.get("code_challenge", challenge) == challenge

    def renew_key(self, key_id: str) -> None:
        self.key, self.key_id = rsa.generate_private_key(public_exponent=65537, key_size=2048), key_id

    def public(self) -> dict[str, Any]:
        found: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**found, "kid": self.key_id, "alg": "RS256", "use": "sig"}

    def token(self, key: Any = None, algorithm: str = "RS256", **claims: object) -> str:
        now = int(time.time())
        whole = {"iss": self.url, "aud": "lake", "sub": "job", "iat": now, "exp": now + 300, **claims}
        kept = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(kept, self.key if key is None else key, algorithm=algorithm, headers={"kid": self.key_id})


@contextmanager
def serving(server_id: str = "lake.example") -> Iterator[Provider]:
    """`server_id`: the STS knows only requests that were signed for this server."""
    provider = Provider(server_id)
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
