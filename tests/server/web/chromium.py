"""Chromium, driven through WebDriver as a person drives it: by clicks, keys, files that are dropped, and looks.

A person cannot click an element that is out of sight, and this cannot either. It waits for what is not there yet.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

WAIT_S: Final = 120
"""As long as a loaded machine may need for a page; a page that is there ends it."""
WIDE: Final = 1280
NARROW: Final = 390
ENTER: Final = "\ue007"
TAB: Final = "\ue004"
TABS_MAX: Final = 100
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"
"""The name that WebDriver gives a reference to an element."""
_FIELD: Final = (
    "//*[self::input or self::textarea or self::select][not(@type='hidden')]"
    "[@aria-label={0} or ancestor::label[normalize-space(text()[normalize-space()])={0}]]"
    "[not(ancestor::details[not(@open)])]"
)
_GONE: Final = ("stale element reference", "does not belong to the document")
_NAMED: Final = "[normalize-space(.)={0} or @aria-label={0}][not(ancestor::details[not(@open)]) or self::summary]"


def is_installed() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def driving() -> Iterator[str]:
    """Start the driver, and yield its address."""
    process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "started successfully on port" in line:
                yield f"http://127.0.0.1:{line.rpartition(' ')[2].strip().rstrip('.')}"
                break
        else:
            raise AssertionError("chromedriver ended")
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(WAIT_S)


class Chromium:
    """A browser with a profile of its own, so it is not logged in. Its size is that of a desk or of a telephone."""

    def __init__(self, driver: str, home: str, folder: Path) -> None:
        self.home = home
        self._client = httpx.Client(base_url=driver, timeout=5 * WAIT_S, trust_env=False)
        arguments = [
            "--headless=new",
            "--no-sandbox",  # Tests in a container run as root.
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={WIDE},900",
        ]
        self.downloads = folder / "downloads"
        options = {"args": arguments, "prefs": {"download.default_directory": f"{self.downloads}"}}
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"implicit": WAIT_S * 1000, "script": 5 * WAIT_S * 1000},
        }
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def close(self) -> None:
        self._ask("DELETE", self._session)
        self._client.close()

    def forget(self) -> None:
        """Become as new: without cookies, at a desk, in light, with scripts, and with an empty console."""
        self._do("POST", "/url", {"url": "about:blank"})
        self.command("Network.clearBrowserCookies", {})
        self.command("Emulation.setScriptExecutionDisabled", {"value": False})
        self.become(WIDE)
        self.errors()

    # Look

    def open(self, path: str) -> None:
        self._do("POST", "/url", {"url": self.home + path})

    def reload(self) -> None:
        self._do("POST", "/refresh", {})

    def back(self) -> None:
        self._do("POST", "/back", {})

    @property
    def path(self) -> str:
        return str(self._do("GET", "/url")).removeprefix(self.home)

    def see(self, words: str) -> None:
        """Wait until the page has these words."""
        try:
            self.find(f"//body//*[not(self::script)][contains(normalize-space(.), {_quoted(words)})]")
        except AssertionError as error:
            raise AssertionError(f"{self.path} does not say {words!r}:\n{self.text()}") from error

    def cookies(self) -> dict[str, dict[str, Any]]:
        """Return those of the page that is open, as the browser keeps them."""
        return {one["name"]: one for one in self._do("GET", "/cookie")}

    def text_of(self, words: str) -> str:
        """Return the whole text of the innermost element that has these words."""
        return self.text_at(f"(//body//*[contains(normalize-space(.), {_quoted(words)})])[last()]")

    def problem(self, words: str) -> None:
        """Wait until the page says with these words why it refuses. What else is on the page does not count."""
        self.find(f"//*[@role='alert'][contains(normalize-space(.), {_quoted(words)})]")

    def text_at(self, xpath: str) -> str:
        """Wait until this element is there, and return its text."""
        return str(self._at(xpath, "GET", "/text"))

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def errors(self) -> list[str]:
        """Return what the console shows since the last call: refusals of the policy are among it.

        Pages that are errors of ours are not: what they say is on the page.
        """
        entries = self._do("POST", "/se/log", {"type": "browser"})
        mistakes = [entry for entry in entries if entry["level"] in {"SEVERE", "WARNING"}]
        return [f"{each['source']}: {each['message']}" for each in mistakes if each["source"] != "network"]

    def links(self) -> list[str]:
        """Return the addresses on this server that the page has links to."""
        addresses = self.run("return [...document.links].map((each) => each.href)")
        own = [each.removeprefix(self.home).partition("#")[0] for each in addresses if each.startswith(self.home)]
        return list(dict.fromkeys(own))

    def overflow(self) -> list[str]:
        """Return the elements that stick out of the page at its right."""
        return list(self.run(_STICKING_OUT))

    def screenshot(self, *, is_whole: bool = False) -> bytes:
        """Return a PNG of what is seen, or of the whole page."""
        options = {"format": "png", "captureBeyondViewport": is_whole}
        if is_whole:
            size = self.run("return [document.documentElement.clientWidth, document.documentElement.scrollHeight]")
            options["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        return base64.b64decode(self.command("Page.captureScreenshot", options)["data"])

    def downloaded(self, name: str) -> bytes:
        """Wait until this file was downloaded, and return it. The browser gives a file its name when it is whole."""
        file, ends_s = self.downloads / name, time.monotonic() + WAIT_S
        while not file.exists():
            assert time.monotonic() < ends_s, sorted(each.name for each in self.downloads.iterdir())
            time.sleep(0.05)
        return file.read_bytes()

    # Do

    def press(self, label: str) -> None:
        """Press the button with this text."""
        self._click("//button" + _NAMED.format(_quoted(label)))

    def follow(self, label: str) -> None:
        """Follow the link with this text."""
        self._click("//a" + _NAMED.format(_quoted(label)))

    def unfold(self, label: str) -> None:
        """Show the details that have this summary."""
        self._click("//summary" + _NAMED.format(_quoted(label)))

    def fill(self, **fields: str) -> None:
        """Type into the fields by the first words of their labels, with spaces for underscores."""
        for label, text in fields.items():
            self.enter(label.replace("_", " "), text)

    def enter(self, label: str, text: str) -> None:
        field = _FIELD.format(_quoted(label))
        self._at(field, "POST", "/clear", {})
        self._at(field, "POST", "/value", {"text": text})

    def choose(self, label: str, option: str) -> None:
        field = _FIELD.format(_quoted(label))
        self._click(f"{field}/option[normalize-space(.)={_quoted(option)}]")

    def tick(self, label: str) -> None:
        self._click(_FIELD.format(_quoted(label)))

    def give_file(self, file: Path) -> None:
        """Choose a file in the form of an upload."""
        self._at("//input[@type='file']", "POST", "/value", {"text": f"{file}"})

    def keys(self, text: str) -> None:
        """Type into the page, where the focus is."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def tab_to(self, label: str) -> None:
        """Press the Tab key until the focus is on what has this text or label, as a person without a mouse does."""
        for _ in range(TABS_MAX):
            self.keys(TAB)
            if self.run(_NAME_OF_FOCUS) == label:
                return
        raise AssertionError(f"{self.path}: the Tab key does not reach {label!r}")

    def drop(self, css: str, *files: Path) -> None:
        """Drop files and folders of this machine on an element."""
        where = self.run(
            "const box = document.querySelector(arguments[0]); box.scrollIntoView();"
            "const at = box.getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]",
            css,
        )
        data = {"items": [], "files": [f"{file}" for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.command("Input.dispatchDragEvent", {"type": kind, "x": where[0], "y": where[1], "data": data})

    def become(self, width: int, *, is_dark: bool = False, height: int = 900) -> None:
        """Be a desk or a telephone, in light or dark. Nothing moves, so each look is at a page at rest."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.command("Emulation.setDeviceMetricsOverride", metrics)
        features = {"prefers-color-scheme": "dark" if is_dark else "light", "prefers-reduced-motion": "reduce"}
        media = [{"name": name, "value": value} for name, value in features.items()]
        self.command("Emulation.setEmulatedMedia", {"features": media})

    def run(self, script: str, *args: object) -> Any:
        return self._do("POST", "/execute/sync", {"script": script, "args": list(args)})

    # WebDriver

    def find(self, xpath: str) -> str:
        return str(self._do("POST", "/element", {"using": "xpath", "value": xpath})[_ELEMENT])

    def focused(self) -> dict[str, str]:
        return dict(self.run("const at = document.activeElement; return {tag: at.localName, name: at.name || ''}"))

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """Send a command of the protocol of Chromium's tools."""
        return self._do("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _click(self, xpath: str) -> None:
        self._at(xpath, "POST", "/click", {})

    def _at(self, xpath: str, method: str, act: str, body: dict[str, Any] | None = None) -> Any:
        """Do this with the element: again, if the page was loaded anew after it was seen."""
        while True:
            try:
                return self._do(method, f"/element/{self.find(xpath)}{act}", body)
            except AssertionError as error:
                if not any(words in str(error) for words in _GONE):
                    raise

    def _do(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._ask(method, self._session + path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self._client.request(method, path, json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, f"{body}: {value['error']}: {value['message'].splitlines()[0]}"
        return value


def log_out(browser: Chromium) -> None:
    """Leave, and wait for the page that asks who comes: an address that is opened before would still be logged in."""
    browser.press("Log out")
    browser.see("You are not logged in.")


def log_in(browser: Chromium, key: str, secret: str) -> None:
    browser.open("/")
    browser.fill(Access_key_id=key, Secret_access_key=secret + ENTER)
    browser.see("Log out")


_NAME_OF_FOCUS: Final = """
const at = document.activeElement, label = at.closest("label");
const texts = label ? [...label.childNodes].filter((each) => each.nodeType === Node.TEXT_NODE) : [];
const words = label ? texts.map((each) => each.data).join(" ") : at.innerText;
return (at.getAttribute("aria-label") || words || "").trim();
"""
_STICKING_OUT: Final = """
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= width) return [];
const isScrolled = (each) => {
  const box = each.closest(".wide, .tabs, pre");
  return box && box !== each && (!each.offsetParent || box.contains(each.offsetParent));
};
return [...document.querySelectorAll("body *")]
  .filter((each) => each.getBoundingClientRect().right > width + 1 && !isScrolled(each))
  .map((each) => `${each.localName}.${each.className}: ${each.textContent.trim().slice(0, 40)}`);
"""
"""An element that scrolls with its box is where it should be. One that is placed outside of the box does not."""


def _quoted(text: str) -> str:
    """Return a text as XPath writes it. It has no escapes, so a text with both quotes is put together."""
    if "'" not in text:
        return f"'{text}'"
    return f'"{text}"' if '"' not in text else "concat(" + ", '\"', ".join(json.dumps(t) for t in text.split('"')) + ")"
