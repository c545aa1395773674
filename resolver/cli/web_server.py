"""HTTP server of ``kdir ui``: GET only, own hosts only.

A client of the port has the rights of the user that started it. Web sites that this user visits
must not get these rights:

* A request must name this server by an address, or by a name that its user gave: a site can point
  only its own names here (DNS rebinding).
* Other sites may link to a page, but not make a browser load it in another way: the duration would
  show what exists (Fetch Metadata Request Headers).
* Answers load nothing from elsewhere, run no script, and are shown in no other site's frame
  (Content-Security-Policy, Level 3).
"""

from __future__ import annotations

import ipaddress
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from resolver.cli.web_pages import STYLE, STYLE_SHEET, Page
from resolver.limited_connections import LimitedConnections

__all__ = ["WebServer", "is_own_host"]

_AT_ONCE: Final = 8
"""Most pages that are made at the same time; further requests wait."""
_CONNECTIONS: Final = 64
"""Most open connections, with a thread each (a browser opens six); further ones are closed at
once.
"""
_REQUEST_SECONDS: Final = 10.0
"""Timeout for reading a request and writing its answer; then the connection is closed."""
_MOST_FIELDS: Final = 10
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_MakePage = Callable[[str, dict[str, str]], Page]


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """True if a Host header (RFC 9110, section 7.2) names this server: by any address, by
    ``localhost``, or by one of ``names``.
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() in {"localhost", *(one.lower() for one in names)}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class WebServer(LimitedConnections, HTTPServer):
    """Server of the pages that ``make_page`` makes from a decoded path and a query.

    Args:
        host: address to listen on.
        port: port to listen on; 0 = a free one.
        names: names of the server that requests may use, besides addresses and ``localhost``.
        report: called with an unexpected error of ``make_page``.

    Raises:
        OSError: it cannot listen on the address.
    """

    request_queue_size = _CONNECTIONS

    def __init__(
        self,
        host: str,
        port: int,
        make_page: _MakePage,
        *,
        names: Iterable[str] = (),
        report: Callable[[Exception], object],
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.make_page = make_page
        self.names = frozenset(names)
        self.report = report
        self.slots = threading.BoundedSemaphore(_AT_ONCE)
        self.connections = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        """Address and port on which it listens, as in a URL."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"{shown}:{port}"

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer would look up its own name

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing: the browser has closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    timeout = _REQUEST_SECONDS
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def do_GET(self) -> None:
        """Answers a request with a page."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not is_own_host(hosts[0], self.server.names):
            self._answer(421, "text/plain", "This server has another name: kdir ui --host NAME\n")
            return
        site, purpose = (self.headers.get(f"Sec-Fetch-{key}", "") for key in ("Site", "Dest"))
        if site in {"cross-site", "same-site"} and purpose != "document":
            self._answer(403, "text/plain", "Another site may link to a page, and load none\n")
            return
        raw, _, text = self.path.partition("?")
        path = unquote(raw)
        try:
            query = dict(parse_qsl(text, max_num_fields=_MOST_FIELDS))
        except ValueError:
            self._answer(400, "text/plain", f"A query has at most {_MOST_FIELDS} fields\n")
            return
        if path == STYLE:
            self._answer(200, "text/css", STYLE_SHEET)
        elif not path.startswith("/"):
            self._answer(400, "text/plain", "The path of a request begins with /\n")
        else:
            with self.server.slots:
                status, html = self._page(path, query)
            self._answer(status, "text/html", html)

    def _page(self, path: str, query: dict[str, str]) -> Page:
        try:
            return self.server.make_page(path, query)
        except Exception as error:  # noqa: BLE001 - reported; further requests are answered
            self.server.report(error)
            return Page(500, "<!doctype html><title>kdir</title><p>An unforeseen error.</p>")

    def _refuse(self) -> None:
        self._answer(405, "text/plain", "Pages are read with GET\n", Allow="GET")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _answer(self, status: int, kind: str, text: str, **headers: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "kdir"

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: a request is not worth an entry, and its path is untrusted text."""
