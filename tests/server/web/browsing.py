"""A browser for tests: it keeps cookies, says that it wants HTML, and fills in the forms of pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urljoin

import httpx

from lakebed.server import App

HOME = "http://localhost"


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)


class Forms(HTMLParser):
    """The forms of a page, the names of its elements, and each address in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.buttons: list[Form] = []
        self.links: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._area = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.elements.append((tag, values))
        self.links += [values[name] for name in ("href", "src", "action", "formaction") if name in values]
        if tag == "form":
            self.forms.append(Form(values.get("action", ""), values.get("method", "get")))
        elif "formaction" in values:
            # A button that sends the fields of its form elsewhere.
            self.buttons.append(Form(values["formaction"], "post", self.forms[-1].fields))
        elif tag in {"input", "textarea"} and self.forms and "name" in values and values.get("type") != "file":
            self.forms[-1].fields[values["name"]] = values.get("value", "")
            self._area = values["name"] if tag == "textarea" else ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.forms[-1].fields[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""


class Browser:
    def __init__(self, app: App, home: str = HOME) -> None:
        self.home = home
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app, raise_app_exceptions=False),
            headers={"accept": "text/html,application/xhtml+xml", "sec-fetch-site": "same-origin"},
        )

    def address(self, path: str) -> str:
        return self.home + path

    async def get(self, path: str, /, **query: str) -> httpx.Response:
        return await self.http.get(self.address(path), params=query)

    async def post(self, path: str, fields: Mapping[str, str | list[str]], **headers: str) -> httpx.Response:
        return await self.http.post(self.address(path), data=dict(fields), headers={"origin": HOME, **headers})

    async def token(self) -> str:
        """The token that every page has."""
        forms = Forms((await self.get("/login")).text).forms
        return next(form.fields["token"] for form in forms if "token" in form.fields)

    async def fill(self, page: httpx.Response, action: str, /, **fields: str) -> httpx.Response:
        """Send the form of a page whose action has this text, with these fields changed."""
        found = Forms(page.text)
        forms = [form for form in found.forms if action in form.action]
        [form] = forms or [form for form in found.buttons if action in form.action]
        url = urljoin(str(page.url), form.action)
        return await self.http.post(url, data=form.fields | fields, headers={"origin": HOME})

    async def follow(self, answer: httpx.Response) -> httpx.Response:
        while answer.status_code == 303:
            answer = await self.http.get(urljoin(str(answer.url), answer.headers["location"]))
        return answer

    async def log_in(self, key: str, secret: str) -> None:
        page = await self.get("/login")
        done = await self.fill(page, "login", access_key_id=key, secret_access_key=secret)
        assert done.status_code == 303, done.text
