"""A schema registry over HTTP or HTTPS: keeps schemas by subject and id, refuses wrong ones."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote

from tests.support.identities import Issued

__all__ = ["KeptSchemas"]

Answer = tuple[int, dict[str, Any]]


class KeptSchemas:
    """A registry on a free port; a context manager. While it is stopped nothing answers there.

    Args:
        certificate: of the server for HTTPS; None: HTTP.
    """

    def __init__(self, certificate: Issued | None = None) -> None:
        self._certificate = certificate
        self.texts: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        """Method and path of each call."""
        self.refusal: Answer | None = None
        """Answer to every call; None: the right answer to each."""
        self._first_id = 70_001
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begins to listen; after a stop, on the same port as before."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                registry.asked.append(f"{self.command} {self.path}")
                code, found = registry.refusal or registry.answer(self.path, body)
                text = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        if self._certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self._certificate.files["cert"], self._certificate.files["key"])
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Stops the server; the schemas stay."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, path: str, body: Any) -> Answer:
        """Returns the right answer to a call: the HTTP status, and the JSON object."""
        match path.strip("/").split("/"):
            case ["subjects", subject, "versions"] if body is not None:
                return self._register(unquote(subject), body["schema"])
            case ["schemas", "ids", number] if int(number) in self.texts:
                return 200, {"schema": self.texts[int(number)]}
            case ["schemas", "ids", number]:
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, text: str) -> Answer:
        versions = self.subjects.setdefault(subject, [])
        if versions and not _reads(json.loads(text), json.loads(self.texts[versions[-1]])):
            message = f'Schema being registered is incompatible with subject "{subject}"'
            return 409, {"error_code": 409, "message": message}
        found = next((number for number, one in self.texts.items() if one == text), None)
        if found is None:
            found = self._first_id + len(self.texts)
            self.texts[found] = text
        if found not in versions:
            versions.append(found)
        return 200, {"id": found}


def _reads(newer: dict[str, Any], older: dict[str, Any]) -> bool:
    """True if the newer of two record schemas reads what the older one wrote."""
    types = {one["name"]: one["type"] for one in older["fields"]}
    return newer["name"] == older["name"] and all(
        types.get(one["name"], one["type"]) == one["type"]
        and (one["name"] in types or "default" in one)
        for one in newer["fields"]
    )
