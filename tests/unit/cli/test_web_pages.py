"""``kdir ui`` over directories in memory: pages, their statuses, and who may ask for them."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from typing import NamedTuple

import pytest
from google.protobuf.message import Message
from kdir.v1 import directory_pb2, entry_pb2, federation_pb2, policies_pb2, watch_pb2

from resolver.cli.main import main
from resolver.cli.web_pages import Page, Pages
from resolver.cli.web_server import WebServer, is_own_host
from resolver.errors import NoRoute, PermissionDenied, Unauthenticated
from resolver.path import Path
from resolver.testing import MemoryDirectory
from tests.support.command_line import answering
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")
MARKUP = '"><script>alert(1)</script>'


@pytest.fixture
def tree() -> Iterator[MemoryDirectory]:
    with MemoryDirectory() as tree:
        tree.cluster("/", "root")
        tree.cluster("/la", "la", bootstrap_servers="la-1:9092")
        tree.cluster("/ny", "ny", bootstrap_servers="ny:9092")
        tree.topic("/la/search/clicks", partitions=24)
        tree.topic("/la/orders")
        tree.topic("/la/orders/dlq")
        tree.topic("/ny/search/clicks")
        tree.link("/search", "/la/search", "/ny/search", union=True)
        yield tree


class Shown(NamedTuple):
    """A page, its text without markup, and where its links lead."""

    status: int
    html: str
    text: str
    links: list[str]


class Browser:
    """Reader of the pages that the root's server gives."""

    def __init__(self, tree: MemoryDirectory, at: str = "127.0.0.1:20000") -> None:
        self._pages = Pages([f"--at={at}"], tree.transport)

    def __call__(self, path: str, **query: str) -> Shown:
        page: Page = self._pages.page(path, query)
        main = page.html.partition("<main>")[2]
        text = unescape(re.sub(r"<[^>]+>", " ", main))
        return Shown(page.status, page.html, text, re.findall(r'<a href="([^"]*)"', main))


@pytest.fixture
def browse(tree: MemoryDirectory) -> Browser:
    return Browser(tree)


def test_a_directory_has_links_to_what_is_in_it(browse: Browser) -> None:
    shown = browse("/la/")
    assert shown.status == 200
    assert {"/", "/la/orders", "/la/orders/", "/la/search/"} <= set(shown.links)
    assert "/la/search/clicks" not in shown.links


def test_a_topic_has_where_it_is_and_how_to_connect(browse: Browser) -> None:
    shown = browse("/la/search/clicks")
    assert shown.status == 200
    assert "search.clicks   24 partitions" in shown.text
    assert "kcat -C -b la-1:9092 -t search.clicks" in shown.text
    assert "bootstrap.servers=la-1:9092" in shown.text
    assert "/la/search/clicks?kafka=1" in shown.links


def test_a_topic_and_a_directory_of_one_name_are_two_pages(browse: Browser) -> None:
    topic, directory = browse("/la/orders"), browse("/la/orders/")
    assert "How to connect" in topic.text
    assert "/la/orders/" in topic.links
    assert "How to connect" not in directory.text
    assert "/la/orders/dlq" in directory.links


def test_a_topic_is_no_directory(browse: Browser) -> None:
    assert browse("/la/search/clicks/").status == 404


def test_what_is_absent_is_not_what_could_not_be_asked(
    tree: MemoryDirectory, browse: Browser
) -> None:
    tree.stop("/ny")
    absent, unreachable = browse("/la/nope"), browse("/ny/search/")
    assert absent.status == 404
    assert "/la/" in absent.links
    assert "neither absent nor empty" not in absent.text
    assert unreachable.status == 503
    assert "(UNREACHABLE)" in unreachable.text
    assert "neither absent nor empty" in unreachable.text


def test_a_cluster_that_does_not_answer_is_marked_where_it_is_mounted(
    tree: MemoryDirectory, browse: Browser
) -> None:
    tree.stop("/ny")
    assert "<td class=bad>disconnected" in browse("/").html
    assert "disconnected" in browse("/~mounts").text


def test_the_page_of_mounts_has_what_the_verb_prints(
    tree: MemoryDirectory, browse: Browser
) -> None:
    rows = [
        federation_pb2.MountRow(
            mount="/la", cluster_id="kc-la", cluster="la", linked=True, confirmed=True
        ),
        federation_pb2.MountRow(
            mount="/la/x",
            cluster_id="kc-x",
            linked=True,
            confirmed=True,
            topic_count=1204,
            age_seconds=400,
        ),
    ]
    answers = {"FederationService.ListMounts": federation_pb2.ListMountsResponse(rows=rows)}
    endpoint = "127.0.0.1:20000"
    tree.transport.serve(endpoint, answering(answers, tree.transport.handler(endpoint), []))
    html = browse("/~mounts").html
    for cells in (
        ("/la/", "/la", "la", "kc-la", "linked", "1,204", "0", "0.0s", "-"),
        ("/la/x/", "/la/x", "-", "kc-x", "linked", "1,204", "1,204", "6m", "-"),
    ):
        link, mount, *others = cells
        row = f'<td><a href="{link}">{mount}</a></td>' + "".join(
            f"<td>{one}</td>" for one in others
        )
        assert row in html
    assert "<th>OWN</th>" in html


def test_mounts_that_no_link_reports_any_more_are_marked(
    tree: MemoryDirectory, browse: Browser
) -> None:
    row = federation_pb2.MountRow(mount="/la", cluster_id="kc-la", linked=True, age_seconds=90)
    answers = {"FederationService.ListMounts": federation_pb2.ListMountsResponse(rows=[row])}
    tree.transport.serve("127.0.0.1:20000", answering(answers, tree.at("/").answer, []))
    shown = browse("/~mounts")
    assert "<td class=bad>unconfirmed" in shown.html
    assert "unconfirmed, as reported up to 1m ago: /la" in shown.text


def test_a_part_of_a_union_that_is_missing_is_named(tree: MemoryDirectory, browse: Browser) -> None:
    tree.stop("/ny")
    shown = browse("/search/")
    assert "/search/clicks" in shown.links
    assert "not listed: /ny/search" in shown.text


def test_an_empty_directory_is_shown_as_empty(tree: MemoryDirectory, browse: Browser) -> None:
    tree.mkdir("/la/empty")
    assert "Nothing is in it." in browse("/la/empty/").text


def test_without_a_route_the_served_mount_is_a_link() -> None:
    with MemoryDirectory() as tree:
        tree.cluster("/la/tracking", "la-tracking")
        shown = Browser(tree)("/")
    assert shown.status == 503
    assert "(NO_ROUTE)" in shown.text
    assert "/la/tracking/" in shown.links


@pytest.mark.parametrize("error", [PermissionDenied("no DESCRIBE"), Unauthenticated("who?")])
def test_what_is_denied_is_shown_as_that(
    tree: MemoryDirectory, browse: Browser, error: Exception
) -> None:
    methods = ("ResolveService.Resolve", "ResolveService.BatchResolve")
    endpoint = "127.0.0.1:20001"
    otherwise = tree.transport.handler(endpoint)
    tree.transport.serve(endpoint, answering(dict.fromkeys(methods, error), otherwise, []))
    shown = browse("/la/search/")
    assert shown.status == 403
    assert f"({error.reason})" in shown.text  # type: ignore[attr-defined]


def test_a_section_that_is_denied_says_so_in_its_place(
    tree: MemoryDirectory, browse: Browser
) -> None:
    endpoint = "127.0.0.1:20001"
    denied = {"AccessService.ListGrants": PermissionDenied("you lack DESCRIBE")}
    tree.transport.serve(endpoint, answering(denied, tree.transport.handler(endpoint), []))
    shown = browse("/la/")
    assert shown.status == 200
    section = shown.html.partition("<h2>Grants set here</h2>")[2].partition("</section>")[0]
    assert "you lack DESCRIBE (PERMISSION_DENIED)" in section


@pytest.mark.parametrize("method", ["WatchService.ListChanges", "DirectoryService.ListEntries"])
def test_a_page_ends_in_time_although_a_server_always_has_one_more_answer(
    tree: MemoryDirectory, method: str
) -> None:
    now = [0.0]
    endpoint = "127.0.0.1:20001"
    otherwise = tree.transport.handler(endpoint)
    asked: list[Message] = []

    def changes(_: Message) -> Message:
        # Of a removal in progress, which is no row for people: no count ends it.
        now[0] += 2
        event = watch_pb2.ChangeEvent(path="/la/__deleted/1/t", revision=10**9 - len(asked))
        return watch_pb2.ListChangesResponse(events=[event], next_page_token=f"{len(asked)}")

    def entries(_: Message) -> Message:
        now[0] += 2
        entry = entry_pb2.Entry(path=f"/la/{len(asked):09}", directory=entry_pb2.Directory())
        return directory_pb2.ListEntriesResponse(entries=[entry], next_page_token=f"{len(asked)}")

    endless = {"WatchService.ListChanges": changes, "DirectoryService.ListEntries": entries}
    tree.transport.serve(endpoint, answering({method: endless[method]}, otherwise, asked))
    pages = Pages(["--at=127.0.0.1:20000"], tree.transport, clock=lambda: now[0])
    for _ in range(2):
        begun = now[0]
        shown = pages.page("/la/", {})
        # Without its content there is no page; any other section has its error in its place.
        assert shown.status == (503 if method == "DirectoryService.ListEntries" else 200)
        assert "not asked: the requests of a page have 60 s (DEADLINE_EXCEEDED)" in shown.html
        assert now[0] - begun <= 62


@pytest.mark.parametrize("path", ["/a//b", "/..", f"/{MARKUP}", "/a\n", "/\ud800", "/~nothing"])
def test_what_is_no_path_is_a_bad_request(browse: Browser, path: str) -> None:
    shown = browse(path)
    assert shown.status == 400
    assert "<script" not in shown.html
    shown.html.encode("utf-8", "replace")


def test_text_of_other_people_is_never_markup(tree: MemoryDirectory, browse: Browser) -> None:
    entry = entry_pb2.Entry(
        topic=entry_pb2.Topic(
            physical_name="evil", provision_message=MARKUP, provision="PROVISION_FAILED"
        ),
        policies=policies_pb2.Policies(owner=f"{MARKUP}\x1b[31m\u202e"),
    )
    tree.at("/la").put(Path.parse("/la/search/evil"), entry)
    pages = [browse("/la/search/"), browse("/la/search/evil"), browse("/~find", q="evil")]
    assert [page.status for page in pages] == [200, 200, 200]
    for page in (*pages, browse("/~find", q=MARKUP), browse("/la/x/", kafka=MARKUP)):
        assert "<script" not in page.html
        assert "\x1b" not in page.html
        assert "\u202e" not in page.html
    assert MARKUP in pages[0].text


def test_a_path_that_a_server_names_leads_to_no_other_host(
    tree: MemoryDirectory, browse: Browser
) -> None:
    row = federation_pb2.MountRow(mount="//evil.example/m", cluster_id="x", linked=True)
    answers = {
        "ResolveService.Resolve": NoRoute("none", mount="//evil.example/x"),
        "FederationService.ListMounts": federation_pb2.ListMountsResponse(rows=[row]),
    }
    endpoint = "127.0.0.1:20000"
    tree.transport.serve(endpoint, answering(answers, tree.transport.handler(endpoint), []))
    assert browse("/~mounts").links == ["/evil.example/m/"]
    assert browse("/la/").links[-1] == "/evil.example/x/"


def test_search_without_an_index_goes_through_a_directory(
    tree: MemoryDirectory, browse: Browser
) -> None:
    assert browse("/~find", q="click").links == ["/la/search/clicks", "/ny/search/clicks"]
    assert browse("/~find", q="cl*", **{"in": "/la/"}).links == ["/la/search/clicks"]
    assert browse("/~find", q="nothing-of-that").status == 404
    assert 'name=in value="/la/search/"' in browse("/la/search/clicks").html
    assert 'name=in value="/la/search/"' in browse("/la/search/").html
    tree.stop("/ny")
    partial = browse("/~find", q="click")
    assert partial.status == 200
    assert partial.links == ["/la/search/clicks"]
    assert "not listed: /ny" in partial.text


# -- the server ----------------------------------------------------------------------------------


@pytest.fixture
def server(tree: MemoryDirectory) -> Iterator[WebServer]:
    failures: list[Exception] = []
    pages = Pages(["--at=127.0.0.1:20000"], tree.transport)

    def make(path: str, query: dict[str, str]) -> Page:
        if path == "/broken":
            raise RuntimeError("a secret")
        return pages.page(path, query)

    with WebServer("127.0.0.1", 0, make, names=["Desk.example"], report=failures.append) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _ask(
    server: WebServer, path: str, method: str = "GET", host: str = "", **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(server.address)
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers={"Host": host or server.address, **more})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response, body


def test_a_page_loads_nothing_from_elsewhere_and_runs_no_script(server: WebServer) -> None:
    response, body = _ask(server, "/la/")
    assert response.status == 200
    assert response.getheader("Content-Type") == "text/html; charset=utf-8"
    policy = response.getheader("Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; style-src 'self'")
    assert "frame-ancestors 'none'" in policy
    assert response.getheader("Cache-Control") == "no-store"
    targets = re.findall(r"(?:src|href|action)=\"?([^\"> ]+)", body)
    assert targets
    assert [target for target in targets if not target.startswith("/")] == []
    assert "<script" not in body
    assert _ask(server, "/~style.css")[0].getheader("Content-Type") == "text/css; charset=utf-8"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_pages_are_only_read(server: WebServer, method: str) -> None:
    response, _ = _ask(server, "/la/", method)
    assert response.status == 405
    assert response.getheader("Allow") == "GET"


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("desk.example", 200),
     ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421)],
)  # fmt: skip
def test_a_site_whose_name_leads_here_reads_nothing(
    server: WebServer, host: str, status: int
) -> None:
    response, body = _ask(server, "/la/", host=host)
    assert response.status == status
    assert ("orders" in body) == (status == 200)


@pytest.mark.parametrize(
    ("site", "purpose", "status"),
    [("cross-site", "document", 200), ("same-origin", "style", 200), ("none", "document", 200),
     ("cross-site", "image", 403), ("same-site", "empty", 403), ("cross-site", "iframe", 403)],
)  # fmt: skip
def test_another_site_may_link_to_a_page_and_load_none(
    server: WebServer, site: str, purpose: str, status: int
) -> None:
    fetched = {"Sec_Fetch_Site": site, "Sec_Fetch_Dest": purpose}
    response, body = _ask(server, "/la/", **fetched)
    assert response.status == status
    assert ("orders" in body) == (status == 200)


@pytest.mark.parametrize("host", ["", "[", ":80", "0x7f.1", "127.0.0.1@evil.example", "[x]"])
def test_what_is_no_host_is_not_ours(host: str) -> None:
    assert not is_own_host(host, ())


def test_connections_are_bounded_and_those_that_end_make_room(server: WebServer) -> None:
    where = ("127.0.0.1", int(server.server_address[1]))
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(where)) for _ in range(64)]
        over = stack.enter_context(socket.create_connection(where))
        over.settimeout(30)
        assert over.recv(1) == b"", "closed"
        silent[1].setblocking(False)
        with pytest.raises(BlockingIOError):  # it was waited for: those before it are open
            silent[1].recv(1)
        silent[0].close()
        eventually(lambda: _is_answered(server))


def test_connections_for_which_no_thread_could_be_started_are_not_counted(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        for _ in range(64):
            near, far = socket.socketpair()
            with near, far, pytest.raises(RuntimeError):
                server.process_request(near, ("127.0.0.1", 1))
    assert _is_answered(server)


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def _is_answered(server: WebServer) -> bool:
    try:
        return _ask(server, "/la/")[0].status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_what_goes_wrong_in_a_page_is_not_in_the_answer(server: WebServer) -> None:
    response, body = _ask(server, "/broken")
    assert response.status == 500
    assert "secret" not in body


@pytest.mark.parametrize("target", ["http://127.0.0.1/la/", "/la/?" + "a=1&" * 20, "/%ff%fe"])
def test_a_request_of_another_form_is_refused(server: WebServer, target: str) -> None:
    assert _ask(server, target)[0].status == 400


# -- the verb ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        ("0.0.0.0:0", "everyone who reaches this port reads what you may read"),
        ("[::]:0", "--allow-remote"),
        ("192.0.2.1:80", "--allow-remote"),
        ("desk.example:80", "an IP address was expected"),
        ("127.0.0.1", "ADDRESS:PORT"),
        ("127.0.0.1:99999", "ADDRESS:PORT"),
    ],
)
def test_only_loopback_is_listened_on_without_a_flag(
    capsys: pytest.CaptureFixture[str], listen: str, message: str
) -> None:
    assert main(["ui", "--listen", listen]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b", "kdir.example.com:7430", "http://kdir", "a/"])
def test_a_name_that_no_browser_calls_is_refused(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["ui", "--host", "kdir.example.com", "--host", name]) == 2
    assert f"--host '{name}': a name without a port was expected" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(
    server: WebServer, tree: MemoryDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--listen", server.address], transport=tree.transport) == 2
    assert f"--listen {server.address}: " in capsys.readouterr().err


def test_pages_stay_those_of_the_context_of_the_start(
    tree: MemoryDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def switch_and_ask(server: WebServer) -> None:
        assert main(["context", "use", "other"]) == 0
        pages.append(server.make_page("/la/", {}))

    pages: list[Page] = []
    monkeypatch.setattr(WebServer, "serve_forever", switch_and_ask)
    assert main(["context", "set", "other", "--servers", "elsewhere:1"]) == 0
    assert main(["ui", "--listen", "127.0.0.1:0"], transport=tree.transport) == 0
    assert main(["context", "set", "here", "--servers", "127.0.0.1:20000"]) == 0
    assert main(["context", "use", "here"]) == 0
    assert main(["ui", "--listen", "127.0.0.1:0"], transport=tree.transport) == 0
    assert [page.status for page in pages] == [503, 200]
    assert "127.0.0.1:7420" in pages[0].html
