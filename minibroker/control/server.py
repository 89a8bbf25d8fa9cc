"""The control API over HTTP: one POST a command, JSON in and out, authenticated by a token.

Off by default. Runs in threads of its own, so that waiting for a fault blocks no client; the commands themselves
run where the cluster does.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from minibroker.config.types import configured_address
from minibroker.kernel.addresses import format_address
from minibroker.kernel.fault_error import FaultError
from minibroker.kernel.http_limits import BoundedHead, LimitedServer, of_family
from minibroker.kernel.logs import get_logger
from minibroker.kernel.outside_json import parse_json
from minibroker.version import __version__
from minibroker_protocol.errors import ApiError

if TYPE_CHECKING:
    from minibroker.control.live_page import LivePage

log = get_logger(__name__)

PREFIX = "/v1/"
_PAGE = "/page"
_MAX_BODY_BYTES = 1024 * 1024
_MAX_LENGTH_DIGITS = 12
_SOCKET_SECONDS = 30.0
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

BeginCommand = Callable[[str, Mapping[str, Any]], Future[Any]]
"""Begins a command where the cluster runs."""


def parse_control(text: str) -> tuple[str, int]:
    """``HOST:PORT`` of the control API. Raises ConfigError."""
    return configured_address(text, "the control address")


class ControlServer:
    """Serves `run` on `address` to clients with `token`, and `page`, if there is one, to all. Raises OSError for the
    address."""

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        run: BeginCommand,
        description: Callable[[], Any],
        page: LivePage | None = None,
        *,
        max_connections: int | None = None,
    ) -> None:
        self.run = run
        self.token = token
        self.description = description
        self.page = page
        server_type = of_family(_Server, address, max_connections=max_connections)
        self._server: _Server = server_type(address, _Handler)
        self._server.control = self
        if not ipaddress.ip_address(self._server.server_address[0].partition("%")[0]).is_loopback:
            log.warning(
                "the control API is reachable from other machines, on %s; its token gives full control%s",
                address[0],
                "" if page is None else ", and every visitor of the page sees every request",
            )
        self.address: tuple[str, int] = self._server.server_address[:2]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="minibroker-control", daemon=True
        )

    @property
    def page_url(self) -> str:
        """The live page's address for browsers on this machine; "" without a page."""
        host, port = self.address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return "" if self.page is None else f"http://{format_address(host, port)}{_PAGE}/"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Accept nothing more; requests under way get their answers from threads that end with the process."""
        if self.page is not None:
            self.page.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(LimitedServer):
    purpose = "control"
    control: ControlServer


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"minibroker/{__version__}"
    sys_version = ""
    timeout = _SOCKET_SECONDS
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = BoundedHead(self.rfile)

    def handle_one_request(self) -> None:
        self.server.connection_limit.waits(self.connection)
        self.rfile.begin()
        super().handle_one_request()

    def do_POST(self) -> None:
        self._answer(self._command)

    def do_GET(self) -> None:
        page = self.server.control.page
        if page is not None and (self.path == _PAGE or self.path.startswith(f"{_PAGE}/")):
            self._show(page)
        else:
            self._answer(self._look)

    def _show(self, page: LivePage) -> None:
        """Serve the live page and its files. This needs no token: without one the page only shows.

        With one, its stream gets a place in any case.
        """
        try:
            self._check_page()
            content: Generator[bytes] | tuple[str, bytes] | None
            if self.path == f"{_PAGE}/events":
                owner = self._has_token()
                if owner:
                    self.server.connection_limit.serves(self.connection)
                content = page.events(owner=owner)
                if content is None:
                    raise _Refused(503, "BUSY", "too many pages are open")
            else:
                content = page.file(self.path.removeprefix(f"{_PAGE}/"))
            if content is None:
                raise _Refused(404, "NOT_FOUND", f"the page is at {_PAGE}/")
        except _Refused as refusal:
            self._send(refusal.status, {"error": {"code": refusal.code, "message": str(refusal)}})
            return
        if isinstance(content, tuple):
            self._begin_page(content[0])
            self.send_header("Content-Length", str(len(content[1])))
            self.end_headers()
            self.wfile.write(content[1])
            return
        with contextlib.closing(content) as events:
            self.close_connection = True
            self._begin_page("text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for event in events:
                self.wfile.write(event)

    def _begin_page(self, content_type: str) -> None:
        from minibroker.control.live_page import POLICY

        self.send_response(200)
        self.send_header("Content-Type", content_type)
        for name, value in _PAGE_HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", POLICY)

    def _answer(self, serve: Callable[[], Any]) -> None:
        try:
            self._check_caller()
            self.server.connection_limit.serves(self.connection)
            status, body = 200, {"result": serve()}
        except _Refused as refusal:
            status, body = refusal.status, {"error": {"code": refusal.code, "message": str(refusal)}}
        except FaultError as error:
            status, body = 400, {"error": {"code": "INVALID", "message": str(error)}}
        except ApiError as error:
            status, body = 409, {"error": {"code": error.code.name, "message": error.message or error.code.name}}
        except Exception as error:
            log.exception("control request failed")
            status, body = 500, {"error": {"code": "INTERNAL", "message": f"{type(error).__name__}: {error}"}}
        self._send(status, body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the base class refuses before a handler is called: broken requests, other methods."""
        self.close_connection = True
        self.request_version = self.protocol_version  # or what was no HTTP at all would be answered without a head
        if self.command == "HEAD":
            self.send_response(code)
            self.end_headers()
            return
        self._send(code, {"error": {"code": "HTTP", "message": message or self.responses.get(code, ("",))[0]}})

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        if status != 200:
            # The body of a refused request may be unread.
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(data)

    def _check_origin(self) -> None:
        """Refuse requests of other pages in a browser: from another origin, or under a host name that was made to point
        here (DNS rebinding)."""
        origin, host = self.headers.get("Origin"), self.headers.get("Host", "")
        if origin is not None and (self.server.control.page is None or origin.lower() != f"http://{host}".lower()):
            raise _Refused(403, "ORIGIN", "requests of other web pages are not served")
        if not _is_address_or_localhost(host):
            raise _Refused(403, "HOST", "the Host header must be localhost or an address")

    def _check_page(self) -> None:
        self._check_origin()
        # A link may lead to the page; nothing of it may be loaded into another.
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin") and self.path != f"{_PAGE}/":
            raise _Refused(403, "ORIGIN", "requests of other web pages are not served")

    def _has_token(self) -> bool:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), self.server.control.token.encode())

    def _check_caller(self) -> None:
        self._check_origin()
        if not self._has_token():
            raise _Refused(401, "TOKEN", "the header Authorization: Bearer TOKEN is missing or wrong")

    def _look(self) -> Any:
        if self.path == f"{PREFIX}openapi.json":
            return self.server.control.description()
        raise _Refused(404, "NOT_FOUND", f"GET serves {PREFIX}openapi.json only; commands are posted")

    def _command(self) -> Any:
        if not self.path.startswith(PREFIX) or "?" in self.path:
            raise _Refused(404, "NOT_FOUND", f"commands are posted to {PREFIX}GROUP/NAME, without a query")
        if self.headers.get_content_type() != "application/json":
            raise _Refused(415, "CONTENT_TYPE", "the body must be application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refused(411, "LENGTH", "Content-Length is missing")
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > _MAX_BODY_BYTES:
            raise _Refused(413, "TOO_LARGE", f"the body may have {_MAX_BODY_BYTES} bytes at most")
        try:
            arguments = parse_json(self.rfile.read(int(length)) or b"{}")
        except ValueError:
            raise _Refused(400, "JSON", "the body is no JSON") from None
        if not isinstance(arguments, dict):
            raise _Refused(400, "JSON", "the body must be a JSON object")
        name = self.path.removeprefix(PREFIX).replace("/", ".")
        return self.server.control.run(name, arguments).result()

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("control: " + format, *args)  # noqa: G003  (the format is the base class's)


def _is_address_or_localhost(host: str) -> bool:
    name = host
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
