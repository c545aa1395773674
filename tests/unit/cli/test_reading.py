"""The verbs that read, over directories in memory: what is printed, and the exit codes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kdir.v1 import (
    access_pb2,
    admin_pb2,
    directory_pb2,
    entry_pb2,
    federation_pb2,
    policies_pb2,
    resolve_pb2,
    watch_pb2,
)

from resolver.cli.main import main
from resolver.cli.watch import note_coverage
from resolver.errors import Unavailable
from resolver.path import Path as KdirPath
from resolver.testing import MemoryDirectory
from tests.support.command_line import Ran, answering, run

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")


@pytest.fixture
def tree() -> Iterator[MemoryDirectory]:
    with MemoryDirectory() as tree:
        tree.cluster("/", "root")
        tree.cluster("/la", "la")
        tree.cluster("/la/tracking", "la-tracking", bootstrap_servers="la-1:9092,la-2:9092")
        tree.cluster("/ny", "ny", bootstrap_servers="ny:9092")
        tree.topic("/la/tracking/search/clicks", partitions=24)
        tree.topic("/la/tracking/search/views")
        tree.topic("/la/tracking/orders")
        tree.topic("/la/tracking/orders/dlq")
        tree.topic("/ny/search/clicks")
        tree.topic("/ny/bids")
        tree.link("/search", "/la/tracking/search", "/ny/search", union=True)
        yield tree


@pytest.fixture
def kdir(tree: MemoryDirectory) -> Kdir:
    return Kdir(tree)


class Kdir:
    """``kdir`` at the root's server, unless another is named."""

    def __init__(self, tree: MemoryDirectory) -> None:
        self.tree = tree
        self._at = {
            "/": "127.0.0.1:20000",
            "/la/tracking": "127.0.0.1:20002",
            "/ny": "127.0.0.1:20003",
        }

    def __call__(self, line: str, *, at: str = "/", terminal: bool = False, stdin: str = "") -> Ran:
        arguments = ["--at", self._at[at], *line.split()]
        return run(arguments, self.tree.transport, terminal=terminal, stdin=stdin)


@pytest.mark.parametrize(
    "line",
    [
        "resolve", "resolve /la/tracking/", "trace", "ls", "ls -R", "ls -d", "tree", "history",
        "watch", "consume", "produce", "export", "rm", "grow --to 3",
    ],
)  # fmt: skip
def test_a_slash_behind_a_topic_is_refused_by_every_verb(kdir: Kdir, line: str) -> None:
    ran = kdir(f"{line} /la/tracking/search/views/")
    assert ran.code == 1
    assert "/la/tracking/search/views is a topic, not a directory (ABSENT)" in ran.err


@pytest.mark.parametrize("line", ["ls", "ls -R", "tree -t"])
def test_a_slash_lists_the_directory_of_a_union_although_another_target_has_a_topic(
    kdir: Kdir, line: str
) -> None:
    path, shown = "/search/views/", "/search/views/t" if line == "ls -R" else "t"
    kdir.tree.mkdir("/ny/search/views")
    heading = [path[:-1]] if line == "tree -t" else []
    assert kdir(f"{line} -o name {path}") == Ran(0, "", "")
    kdir.tree.topic("/ny/search/views/t")
    ran = kdir(f"{line} {path}")
    assert (ran.code, ran.err) == (0, "")
    assert [re.sub(r"── |└|  .*", "", one) for one in ran.lines] == [*heading, shown]
    kdir.tree.remove("/ny/search/views")
    kdir.tree.topic("/ny/search/views")
    ran = kdir(f"{line} {path}")
    assert (ran.code, ran.out) == (1, "")
    assert "/search/views is a topic, not a directory (ABSENT)" in ran.err
    kdir.tree.stop("/ny")
    assert kdir(f"{line} {path}").code == 3, "a directory may be there"


def test_json_has_no_fields_of_topics_for_other_entries(kdir: Kdir) -> None:
    (found,) = kdir("resolve -o json /la/tracking/search").objects
    of_topic = {"topic", "topic_id", "partitions", "replication_factor", "bootstrap_servers"}
    assert not of_topic & found.keys()
    (found,) = kdir("resolve -o json /la/tracking/search/clicks").objects
    assert of_topic < found.keys()


@pytest.mark.parametrize("verb", ["resolve -o kcat", "consume", "produce", "stat --groups"])
def test_a_wrong_listener_is_answered_with_those_that_there_are(kdir: Kdir, verb: str) -> None:
    ran = kdir(f"{verb} /ny/bids --listener zz")
    assert ran.code == 2
    assert re.search(r"cluster ny has no listener 'zz'; it has \w+", ran.err)


def test_settings_of_the_command_line_are_named_as_such(kdir: Kdir) -> None:
    ran = kdir("produce /ny/bids -X acks=5")
    assert ran.code == 2
    assert "acks=5 (by -X or --properties)" in ran.err
    assert "a number from 0 was expected" in kdir("consume /ny/bids --partition -1").err


# -- ls ------------------------------------------------------------------------------------------


def test_ls_prints_names_with_a_slash_behind_what_one_can_go_into(kdir: Kdir) -> None:
    ran = kdir("ls /la/tracking")
    assert ran == Ran(0, "orders\norders/\nsearch/\n", "")


def test_ls_wide_has_all_columns_of_a_long_listing_and_more(kdir: Kdir) -> None:
    head, *rows = kdir("ls -o wide /la/tracking").lines
    narrow, *others = kdir("ls -l -o table /la/tracking").lines
    assert head.split() == [*narrow.split(), "CONTACT", "TAGS", "TOPIC", "ID", "CHANGED", "CHANGED",
                            "BY"]  # fmt: skip
    assert [row.split()[:9] for row in rows] == [row.split() for row in others]


def test_mounts_wide_has_epochs(kdir: Kdir) -> None:
    assert "EPOCH" not in kdir("mounts -o table").lines[0]
    assert kdir("mounts -o wide").lines[0].split()[-2:] == ["EPOCH", "LEVEL"]


def test_a_template_selects_of_each_object_of_json(kdir: Kdir) -> None:
    ran = kdir("ls -k topic -o jsonpath={.path}:{.topic.partitions} /la/tracking/search")
    assert ran == Ran(0, "/la/tracking/search/clicks:24\n/la/tracking/search/views:1\n", "")
    ran = kdir("resolve -o jsonpath={.cluster} /la/tracking/orders /ny/bids")
    assert ran.lines == ["la-tracking", "ny"]


def test_an_object_of_which_nothing_is_selected_has_no_line(kdir: Kdir) -> None:
    assert kdir("ls -o jsonpath={.topic.partitions} /la/tracking").out == "1\n"


def test_a_template_that_cannot_be_read_is_a_usage_error(kdir: Kdir) -> None:
    ran = kdir("ls -o jsonpath={.path[} /la")
    assert ran.code == 2
    assert "at character 8: a number, a quoted name, * or ?( was expected, found '}'" in ran.err


def test_ls_without_a_path_is_the_root(kdir: Kdir) -> None:
    assert kdir("ls").lines == ["la/", "ny/", "search/"]


@pytest.mark.parametrize("verb", ["ls", "ls -R", "tree -t", "ls -o json"])
def test_without_a_path_and_a_route_to_the_root_the_served_mount_is_shown(verb: str) -> None:
    with MemoryDirectory() as tree:
        tree.cluster("/la/tracking", "la-tracking")
        tree.topic("/la/tracking/orders", "orders")
        ran = run(["--at", "127.0.0.1:20000", *verb.split()], tree.transport)
        assert ran.code == 0
        assert "orders" in ran.out
        assert "showing /la/tracking, which the queried server serves" in ran.err
        refused = run(["--at", "127.0.0.1:20000", *verb.split(), "/"], tree.transport)
        assert (refused.code, refused.out) == (3, "")
        assert "what is served there: kdir ls /la/tracking" in refused.err


def test_ls_of_a_topic_shows_the_topic(kdir: Kdir) -> None:
    assert kdir("ls /la/tracking/search/clicks").lines == ["clicks"]


def test_ls_long_on_a_terminal_is_a_table(kdir: Kdir) -> None:
    assert kdir("ls -l /la/tracking", terminal=True).lines == [
        "KIND   NAME     PARTITIONS  RF  RETENTION  OWNER  TOPICS  STATE   LOCATION",
        "topic  orders            1   1  -          -           -  active  la-tracking:orders",
        "dir    orders/           -   -  -          -           1  -       la-tracking",
        "dir    search/           -   -  -          -           2  -       la-tracking",
    ]


def test_ls_long_elsewhere_is_tab_separated(kdir: Kdir) -> None:
    first = kdir("ls -l /la/tracking").lines[0]
    assert first.split("\t") == [
        "topic",
        "orders",
        "1",
        "1",
        "-",
        "-",
        "-",
        "active",
        "la-tracking:orders",
    ]


def test_ls_json_is_one_entry_a_line(kdir: Kdir) -> None:
    objects = kdir("ls -o json /la/tracking/search").objects
    assert [one["path"] for one in objects] == [
        "/la/tracking/search/clicks",
        "/la/tracking/search/views",
    ]
    assert objects[0]["topic"]["partitions"] == 24


def test_ls_yaml_is_a_stream(kdir: Kdir) -> None:
    documents = list(yaml.safe_load_all(kdir("ls -o yaml /la/tracking/search").out))
    assert [one["topic"]["physical_name"] for one in documents] == ["search.clicks", "search.views"]


def test_ls_name_prints_paths_that_kdir_takes_again(kdir: Kdir) -> None:
    assert kdir("ls -o name /la/tracking").lines == [
        "/la/tracking/orders",
        "/la/tracking/orders/",
        "/la/tracking/search/",
    ]


def test_ls_recursive_goes_across_mounts(kdir: Kdir) -> None:
    assert kdir("ls -R /la").lines == [
        "/la/tracking/",
        "/la/tracking/orders",
        "/la/tracking/orders/",
        "/la/tracking/orders/dlq",
        "/la/tracking/search/",
        "/la/tracking/search/clicks",
        "/la/tracking/search/views",
    ]


def test_ls_behind_a_union_says_where_each_is(kdir: Kdir) -> None:
    assert kdir("ls /search", terminal=True).lines == [
        "clicks  /la/tracking/search/clicks",
        "views   /la/tracking/search/views",
    ]
    assert kdir("ls /search").lines == ["clicks", "views"]


def test_a_partial_listing_prints_what_it_has_and_exits_3(kdir: Kdir) -> None:
    kdir.tree.stop("/la/tracking")
    ran = kdir("ls /search")
    assert ran.code == 3
    assert ran.lines == ["clicks"]
    assert ran.err.startswith("not listed: /la/tracking/search: ")
    assert "UNREACHABLE" in ran.err


def with_unreadable(kdir: Kdir, path: str, count: int) -> None:
    """Makes the server at ``path``'s own endpoint count entries that cannot be read, directly in
    that directory.
    """
    endpoint = kdir.tree.at("/ny").endpoint
    whole = kdir.tree.transport.handler(endpoint)

    def handle(method: str, request: Any) -> Any:
        answer = whole(method, request)
        if method == "DirectoryService.ListEntries":
            above = request.recursive and path.startswith(f"{request.path}/")
            if above or request.path == path:
                answer.unreadable_count = count
            for entry in answer.entries:
                if entry.path == path:
                    entry.directory.unreadable_count = count
        return answer

    kdir.tree.transport.serve(endpoint, handle)


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("ls /ny/hr", "/ny"),
        ("ls /ny/hr", "/"),
        ("ls -R /ny", "/"),
        ("ls /ny/h*/*", "/"),
        ("tree /ny", "/"),
        ("export /ny", "/"),
        ("ls -o json /ny/hr", "/ny"),
    ],
)
def test_S21_entries_that_cannot_be_read_are_counted_in_a_listing(
    kdir: Kdir, line: str, at: str
) -> None:
    kdir.tree.mkdir("/ny/hr")
    with_unreadable(kdir, "/ny/hr", 2)
    ran = kdir(line, at=at)
    where = "/ny" if line in {"ls -R /ny", "export /ny"} else "/ny/hr"
    assert ran.code == 3
    lacks = f"not listed: {where}: 2 entries that cannot be read: kdir verify {where}"
    assert f"{lacks} (UNREADABLE_RECORD)" in ran.err
    assert kdir("ls /ny", at=at).code == 0


def test_several_paths_have_headings_and_one_that_fails_stops_none(kdir: Kdir) -> None:
    for terminal in (True, False):
        ran = kdir("ls /nope /ny", terminal=terminal)
        assert ran.code == 1
        assert ran.lines == ["/nope:", "", "/ny:", "bids", "search/"]
        assert "error: /nope does not exist" in ran.err
    assert kdir("ls -o name /ny /la").lines == ["/ny/bids", "/ny/search/", "/la/tracking/"]


def test_topics_are_counted_at_any_depth(kdir: Kdir) -> None:
    kdir.tree.topic("/la/tracking/search/ads/seen")
    listed = kdir("ls -l /la/tracking").lines
    assert [line.split("\t")[6] for line in listed] == ["-", "1", "3"]
    assert [line.split("\t")[7] for line in listed] == ["active", "-", "-"]
    drawn = kdir("tree -L 1 /la/tracking", terminal=True).lines
    assert [line.split()[1:] for line in drawn if "search/" in line] == [["search/", "3", "topics"]]


def test_ls_directory_is_the_entry_itself(kdir: Kdir) -> None:
    assert kdir("ls -d /search").lines == ["/search/"]
    assert kdir("ls -d /la/tracking/orders /la/tracking/orders/").lines == [
        "/la/tracking/orders",
        "/la/tracking/orders/",
    ]


def test_ls_of_ones_own_server_is_one_call(kdir: Kdir) -> None:
    assert kdir("ls /la/tracking", at="/la/tracking").code == 0
    assert [method for _, method in kdir.tree.transport.calls] == ["DirectoryService.ListEntries"]


def test_ls_takes_no_listing_from_a_server_that_does_not_own_it(kdir: Kdir) -> None:
    # Says that it hangs elsewhere than at the path that it lists.
    liar = directory_pb2.ListEntriesResponse(entries=[entry_pb2.Entry(path="/la/tracking/lie")])
    liar.authority.cluster.mount = "/la/track"
    calls: list[object] = []
    root = kdir.tree.at("/")
    handler = answering({"DirectoryService.ListEntries": liar}, root.answer, calls)
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    assert kdir("ls /la/tracking").lines == ["orders", "orders/", "search/"]
    assert len(calls) == 1


def _path(text: str) -> KdirPath:
    return KdirPath.parse(text)


# -- absent, unreachable, usage ------------------------------------------------------------------


def test_absent_is_1_and_says_what_is_near(kdir: Kdir) -> None:
    ran = kdir("resolve /la/tracking/search/klicks")
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err == (
        "error: /la/tracking/search/klicks does not exist; "
        "the nearest directory is /la/tracking/search (ABSENT)\n"
        "  did you mean /la/tracking/search/clicks?\n"
        "  its content: kdir ls /la/tracking/search\n"
    )


def test_unreachable_is_3_and_names_who_was_asked(kdir: Kdir) -> None:
    kdir.tree.stop("/ny")
    ran = kdir("resolve /ny/bids")
    assert ran.code == 3
    assert "(UNREACHABLE)" in ran.err
    assert "queried: root-1 at 127.0.0.1:20000" in ran.err


@pytest.mark.parametrize(
    "line",
    [
        "ls la", "ls //", "ls /a//b", "ls /a/../b", "resolve", "resolve --no-such /a", "nosuchverb",
        "ls -o xml /", "--at nowhere: ls", "ls --timeout 0 /", "ls /[", "tree -L x /",
    ],
)  # fmt: skip
def test_what_is_no_command_is_2(kdir: Kdir, line: str) -> None:
    ran = kdir(line)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err


def test_an_unknown_verb_names_the_nearest(kdir: Kdir) -> None:
    assert "did you mean: kdir resolve" in kdir("reslove /x").err
    assert "did you mean: kdir rm" in kdir("delete /x").err


# -- resolve, which, trace -----------------------------------------------------------------------


def test_resolve_says_all_that_a_person_wants(kdir: Kdir) -> None:
    assert kdir("resolve /la/tracking/search/clicks", terminal=True).lines == [
        "/la/tracking/search/clicks",
        "  cluster     la-tracking (kc-la-tracking)    mounted at /la/tracking",
        "  topic       search.clicks   24 partitions, replication 1",
        "  listeners   memory  PLAINTEXT  la-1:9092,la-2:9092",
    ]


def test_resolve_by_a_link_says_which(kdir: Kdir) -> None:
    assert (
        "  by link     /search → /la/tracking/search/clicks"
        in kdir("resolve -o table /search/clicks").lines
    )


def test_resolve_elsewhere_is_tab_separated(kdir: Kdir) -> None:
    ran = kdir("resolve /la/tracking/search/clicks /la/tracking/search")
    assert [line.split("\t") for line in ran.lines] == [
        ["/la/tracking/search/clicks", "topic", "la-tracking", "search.clicks", "24", "1",
         "PLAINTEXT", "la-1:9092,la-2:9092", "-"],
        ["/la/tracking/search", "directory", "la-tracking", "-", "-", "-", "-", "-", "-"],
    ]  # fmt: skip
    assert kdir("resolve --listener edge /ny/bids").code == 2


def test_stat_has_the_units_of_ls(kdir: Kdir) -> None:
    week = {"retention.ms": "604800000"}
    found = entry_pb2.Entry(topic=entry_pb2.Topic(physical_name="weekly", observed_config=week))
    found.policies.topic_config["retention.ms"].value = "86400000"
    owner = kdir.tree.at("/la/tracking")
    owner.put(_path("/la/tracking/weekly"), found)
    answer = directory_pb2.GetEntryResponse(entry=found)
    handler = answering({"DirectoryService.GetEntry": answer}, owner.answer, [])
    kdir.tree.transport.serve("127.0.0.1:20002", handler)
    shown = kdir("stat /la/tracking/weekly", terminal=True).out
    assert re.search(r"^kafka retention.ms +7d$", shown, re.MULTILINE)
    assert re.search(r"^retention.ms +1d$", shown, re.MULTILINE)
    assert "kafka retention.ms\t604800000" in kdir("stat /la/tracking/weekly").lines


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (
            "/la/grün",
            "path '/la/grün': segment 2 is 'grün': character 'ü' (U+00FC) at 3 is not one of",
        ),
        ("/la/a$b", "path '/la/a$b': segment 2 is 'a$b': character '$' at 2 is not one of"),
        ("/la/*ü", "invalid glob '/la/*ü': character 6: 'ü' (U+00FC) is in no name"),
        ("/la/\u202ex", r"segment 2 is '\u202ex': character '\u202e' at 1 is not one of"),
    ],
)
def test_a_wrong_character_is_shown_as_it_is_and_counted_from_1(
    kdir: Kdir, path: str, complaint: str
) -> None:
    ran = kdir(f"ls {path}")
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err


def test_no_server_at_all_is_reported_in_one_plain_sentence(kdir: Kdir) -> None:
    kdir.tree.stop("/")
    ran = kdir("resolve /ny/bids")
    assert ran.code == 3
    assert ran.err.startswith("error: no server answered: ")


def test_resolve_kcat_and_properties(kdir: Kdir) -> None:
    assert kdir("resolve -o kcat /la/tracking/search/clicks").out == (
        "-b la-1:9092,la-2:9092 -t search.clicks\n"
    )
    assert kdir("resolve -o properties /la/tracking/search/clicks").lines == [
        "# /la/tracking/search/clicks is topic search.clicks of la-tracking",
        "bootstrap.servers=la-1:9092,la-2:9092",
        "security.protocol=PLAINTEXT",
    ]


def test_settings_for_a_topic_that_kafka_does_not_have_come_with_a_warning(kdir: Kdir) -> None:
    lost = entry_pb2.Topic(physical_name="lost", provision=entry_pb2.PROVISION_MISSING)
    kdir.tree.at("/la/tracking").put(_path("/la/tracking/lost"), entry_pb2.Entry(topic=lost))
    for wanted in ("kcat", "properties", "name"):
        ran = kdir(f"resolve -o {wanted} /la/tracking/lost")
        assert ran.code == 0
        assert ran.err == "/la/tracking/lost: missing\n"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("resolve -o kcat /la/tracking/search", "is a directory, not a topic"),
        ("resolve -o kcat --listener edge /ny/bids", "no listener 'edge'; it has memory"),
    ],
)
def test_kcat_wants_a_topic_with_a_listener(kdir: Kdir, line: str, complaint: str) -> None:
    ran = kdir(line)
    assert ran.code == 2
    assert complaint in ran.err


def test_resolve_json_has_the_stable_names(kdir: Kdir) -> None:
    (one,) = kdir("resolve -o json /la/tracking/search/clicks").objects
    assert one["path"] == "/la/tracking/search/clicks"
    assert (one["cluster"], one["cluster_id"]) == ("la-tracking", "kc-la-tracking")
    assert (one["topic"], one["partitions"]) == ("search.clicks", 24)
    assert len(one["topic_id"]) == 22
    assert one["mount"] == "/la/tracking"
    assert one["bootstrap_servers"] == "la-1:9092,la-2:9092"
    assert one["listeners"][0]["security_protocol"] == "PLAINTEXT"
    assert one["stale"] is False
    assert one["entry"]["topic"]["physical_name"] == "search.clicks"


def test_a_slash_behind_asks_for_the_directory_of_a_shared_name(kdir: Kdir) -> None:
    both = kdir("resolve -o json /la/tracking/orders /la/tracking/orders/").objects
    assert [one["kind"] for one in both] == ["topic", "directory"]
    assert both[0]["has_container"] is True
    assert (
        "a directory of this name: /la/tracking/orders/"
        in kdir("resolve -o table /la/tracking/orders").out
    )


def test_many_paths_come_from_stdin_and_each_has_its_own_outcome(kdir: Kdir) -> None:
    ran = kdir("resolve -o name -", stdin="/ny/bids\n/nope\n\nbad\n/la/tracking/orders\n")
    assert ran.lines == ["/ny/bids", "/la/tracking/orders"]
    assert ran.code == 1
    assert "ABSENT" in ran.err
    assert "INVALID_PATH" in ran.err
    methods = [method for _, method in kdir.tree.transport.calls]
    assert "ResolveService.BatchResolve" in methods


@pytest.mark.parametrize(("lines", "code"), [("/nope\nbad\n", 1), ("bad\n/ny/bids\n/nope\n", 2)])
def test_the_exit_code_is_that_of_the_first_path_that_failed(
    kdir: Kdir, monkeypatch: pytest.MonkeyPatch, lines: str, code: int
) -> None:
    for most in (1, 1000):
        monkeypatch.setattr("resolver.cli.resolve._MOST_AT_ONCE", most)
        assert kdir("resolve -o name -", stdin=lines).code == code


def test_no_path_on_stdin_is_noted(kdir: Kdir) -> None:
    assert kdir("resolve -", stdin="\n") == Ran(0, "", "stdin had no path: nothing was resolved\n")


def test_a_byte_on_stdin_that_is_no_text_is_one_sentence(
    kdir: Kdir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"/ny/bids\n/\xff\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["--at", "127.0.0.1:20000", "resolve", "-"], transport=kdir.tree.transport) == 2
    assert "error: -: is not text: 'utf-8' codec" in capsys.readouterr().err


def test_which_is_the_way_back(kdir: Kdir) -> None:
    assert kdir("which la-tracking search.clicks").out == "/la/tracking/search/clicks\t-\n"
    assert kdir("which la-tracking search.clicks -o name").out == "/la/tracking/search/clicks\n"
    assert kdir("which bids", at="/ny").out == "/ny/bids\t-\n"
    ran = kdir("which la-tracking nothing")
    assert (ran.code, "kdir ls --detached /la/tracking" in ran.err) == (1, True)


def test_trace_shows_each_hop(kdir: Kdir) -> None:
    ran = kdir("trace /ny/bids")
    assert ran.code == 0
    rows = [line.split("\t") for line in ran.lines]
    assert [row[:3] for row in rows] == [
        ["1", "root-1", "down → /ny"],
        ["2", "ny-1", "authoritative"],
        ["=", "ny:bids", "PLAINTEXT ny:9092"],
    ]
    assert all(0 < float(row[-1]) < 60 for row in rows)  # exact seconds
    people = kdir("trace /ny/bids -o table").lines
    assert all(line.endswith("ms") for line in people)


def test_trace_of_what_fails_still_shows_the_hops(kdir: Kdir) -> None:
    kdir.tree.stop("/ny")
    ran = kdir("trace /ny/bids")
    assert ran.code == 3
    assert ran.lines[0].startswith("1\troot-1\t")
    assert "UNREACHABLE" in ran.lines[-1]
    assert all("" not in line.split("\t") for line in ran.lines)


# -- tree, mounts --------------------------------------------------------------------------------


def test_tree_draws_directories_mounts_and_links(kdir: Kdir) -> None:
    # The servers in memory do not choose by kind, so that topics are drawn along.
    assert kdir("tree -L 1 /").lines == [
        "/",
        "├── la/       mount  la                                         4 topics",
        "├── ny/       mount  ny                                         2 topics",
        "└── search/   link   union of /la/tracking/search, /ny/search",
    ]


def test_tree_of_topics_alone_says_how_many_there_are(kdir: Kdir) -> None:
    root = kdir.tree.at("/ny")
    request = directory_pb2.ListEntriesRequest(path="/ny")
    listed = root.answer("DirectoryService.ListEntries", request)
    del listed.entries[:]  # as a server answers that is not asked for topics
    handler = answering({"DirectoryService.ListEntries": listed}, root.answer, [])
    kdir.tree.transport.serve("127.0.0.1:20003", handler)
    assert kdir("tree /ny").lines == ["/ny   2 topics"]


def test_tree_of_a_union_does_not_count_the_topics_of_one_target_alone(kdir: Kdir) -> None:
    for path, mount, address in (
        ("/la/tracking/search", "/la/tracking", "127.0.0.1:20002"),
        ("/ny/search", "/ny", "127.0.0.1:20003"),
    ):
        target = kdir.tree.at(mount)
        request = directory_pb2.ListEntriesRequest(path=path)
        listed = target.answer("DirectoryService.ListEntries", request)
        del listed.entries[:]  # as a server answers that is not asked for topics
        handler = answering({"DirectoryService.ListEntries": listed}, target.answer, [])
        kdir.tree.transport.serve(address, handler)
    assert kdir("tree /search").lines == ["/search"]


def _topics_in_stat(kdir: Kdir, path: str) -> list[str]:
    """Returns the numbers of topics that stat prints of what the root has at a path."""
    root = kdir.tree.at("/")
    listed = root.answer("DirectoryService.ListEntries", directory_pb2.ListEntriesRequest(path="/"))
    (entry,) = (one for one in (listed.directory, *listed.entries) if one.path == path)
    found = directory_pb2.GetEntryResponse(entry=entry, authority=listed.authority)
    canned = {"DirectoryService.GetEntry": found}
    for number, mount in enumerate(("/", "/la")):
        handler = answering(canned, kdir.tree.at(mount).answer, [])
        kdir.tree.transport.serve(f"127.0.0.1:{20_000 + number}", handler)
    return [line for line in kdir(f"stat {path}").lines if "topics" in line.split("\t")[0]]


def test_topics_are_counted_in_all_clusters_below_by_every_verb(kdir: Kdir) -> None:
    assert [line.split("\t")[6] for line in kdir("ls -l /").lines] == ["4", "2", "-"]
    assert _topics_in_stat(kdir, "/") == ["topics\t6", "topics directly\t0"]
    assert _topics_in_stat(kdir, "/la") == ["topics\t4", "own topics\t0"]
    listed = [line.split("\t") for line in kdir("mounts").lines]
    assert [(row[0], row[4], row[5]) for row in listed] == [
        ("/la", "4", "0"), ("/la/tracking", "4", "4"), ("/ny", "2", "2"),
    ]  # fmt: skip


def test_of_clusters_that_are_not_linked_the_topics_are_not_known(kdir: Kdir) -> None:
    kdir.tree.cluster("/la/ads", "la-ads")
    kdir.tree.topic("/la/ads/seen")
    kdir.tree.stop("/la/tracking")
    assert "at least 1 topic" in next(one for one in kdir("tree -L 1 /").lines if "la/" in one)
    assert [line.split("\t")[6] for line in kdir("ls -l /").lines][:2] == ["1+", "2"]
    assert kdir("ls -l /", terminal=True).lines[1].split()[6:9] == ["at", "least", "1"]
    assert [line.split("\t")[6] for line in kdir("ls -l /la").lines] == ["1", "-"]
    assert _topics_in_stat(kdir, "/") == ["topics\t3+", "topics directly\t0"]
    listed = [line.split("\t") for line in kdir("mounts").lines]
    assert [(row[0], row[4], row[5]) for row in listed] == [
        ("/la", "1+", "0"), ("/la/ads", "1", "1"), ("/la/tracking", "-", "4"), ("/ny", "2", "2"),
    ]  # fmt: skip
    keys = ("mount", "total_topic_count", "total_is_lower_bound", "topic_count")
    assert [tuple(map(one.get, keys)) for one in kdir("mounts -o json").objects] == [
        ("/la", 1, True, 0), ("/la/ads", 1, None, 1), ("/la/tracking", None, True, 4),
        ("/ny", 2, None, 2),
    ]  # fmt: skip


def test_where_the_mount_table_cannot_be_read_no_number_is_claimed(kdir: Kdir) -> None:
    silent = {"FederationService.ListMounts": Unavailable("gone")}
    handler = answering(silent, kdir.tree.at("/").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    assert [line.split("\t")[6] for line in kdir("ls -l /").lines] == ["-", "2+", "-"]


def test_tree_shows_in_its_place_what_does_not_answer(kdir: Kdir) -> None:
    kdir.tree.stop("/ny")
    ran = kdir("tree -L 2 /")
    assert ran.code == 3
    assert next(line for line in ran.lines if "ny/" in line).split() == (
        ["├──", "ny/", "mount", "ny", "unreachable"]
    )
    assert "not listed: /ny: " in ran.err


def test_mounts_shows_those_that_wait_too(kdir: Kdir) -> None:
    answer = federation_pb2.ListMountsResponse(
        rows=[
            federation_pb2.MountRow(
                mount="/la", cluster_id="kc-la", cluster="la", linked=True, confirmed=True,
                topic_count=1204, endpoints=["la-1:7420"],
            ),
            federation_pb2.MountRow(mount="/ny", cluster_id="kc-ny", age_seconds=400),
        ],
        pending_children=[
            federation_pb2.PendingChild(
                cluster_id="kc-eu", cluster="eu", mount="/eu", age_seconds=1, message="no mount"
            )
        ],
    )  # fmt: skip
    root = kdir.tree.at("/")
    handler = answering({"FederationService.ListMounts": answer}, root.answer, [])
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    ran = kdir("mounts -o table")
    assert ran.lines == [
        "MOUNT  CLUSTER  CLUSTER ID  STATE         TOPICS    OWN   AGE  SERVERS",
        "/la    la       kc-la       linked         1,204  1,204  0.0s  la-1:7420",
        "/ny    -        kc-ny       disconnected       -      -    6m  -",
        "/eu    eu       kc-eu       pending            -      -  1.0s  -",
    ]
    assert ran.err == "pending child eu: no mount\n"
    objects = kdir("mounts -o json").objects
    assert [one["age_seconds"] for one in objects] == [0, 400, 1]
    states = [one["state"] for one in objects]
    assert states == ["linked", "disconnected", "pending"]
    assert kdir("mounts -o name").lines == ["/la", "/ny"]


def test_mounts_of_a_stale_copy_are_reported_as_such(kdir: Kdir) -> None:
    root = kdir.tree.at("/")
    answer = federation_pb2.ListMountsResponse()
    authority = answer.authorities.add(stale=True, age_seconds=120.0)
    authority.cluster.cluster, authority.cluster.cluster_id = "root", root.cluster_id
    handler = answering({"FederationService.ListMounts": answer}, root.answer, [])
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    for line in ("mounts", "mounts -o json", "mounts -o name"):
        assert kdir(line) == Ran(0, "", "root: stale: its store has been unavailable for 2m\n")


def test_mounts_that_no_link_reports_any_more_are_unconfirmed(kdir: Kdir) -> None:
    """A child whose link to its parent has ended has the siblings as they were then."""
    answer = federation_pb2.ListMountsResponse(
        rows=[
            federation_pb2.MountRow(
                mount="/la", cluster_id="kc-la", cluster="la", linked=True, age_seconds=60
            ),
            federation_pb2.MountRow(
                mount="/ny", cluster_id="kc-ny", cluster="ny", linked=True, age_seconds=400
            ),
            federation_pb2.MountRow(
                mount="/ny/ads", cluster_id="kc-ads", cluster="ads", linked=True, confirmed=True
            ),
        ],
    )
    handler = answering({"FederationService.ListMounts": answer}, kdir.tree.at("/ny").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20003", handler)
    ran = kdir("mounts", at="/ny")
    assert [line.split("\t")[3] for line in ran.lines] == ["unconfirmed", "unconfirmed", "linked"]
    assert [line.split("\t")[6] for line in ran.lines] == ["60.000", "400.000", "0.000"]
    assert ran.err == (
        "unconfirmed, as reported up to 6m ago: /la, /ny: no parent confirms these mounts now\n"
    )
    objects = kdir("mounts -o json", at="/ny").objects
    assert [(one["state"], one["confirmed"]) for one in objects] == [
        ("unconfirmed", False), ("unconfirmed", False), ("linked", True)
    ]  # fmt: skip


def test_mounts_of_which_nothing_is_known_are_not_shown_as_disconnected(kdir: Kdir) -> None:
    answer = federation_pb2.ListMountsResponse(
        rows=[
            federation_pb2.MountRow(mount="/eu", cluster_id="kc-eu", link_unknown=True),
            federation_pb2.MountRow(mount="/la", cluster_id="kc-la"),
        ],
    )
    handler = answering({"FederationService.ListMounts": answer}, kdir.tree.at("/ny").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20003", handler)
    ran = kdir("mounts", at="/ny")
    assert [line.split("\t")[3] for line in ran.lines] == ["unknown", "disconnected"]
    assert [line.split("\t")[4] for line in ran.lines] == ["-", "-"]
    objects = kdir("mounts -o json", at="/ny").objects
    assert [one["state"] for one in objects] == ["unknown", "disconnected"]


# -- watch, history ------------------------------------------------------------------------------


def test_history_of_what_never_was_is_absent(kdir: Kdir) -> None:
    root = kdir.tree.at("/")
    none = {"WatchService.ListChanges": watch_pb2.ListChangesResponse()}
    kdir.tree.transport.serve("127.0.0.1:20000", answering(none, root.answer, []))
    ran = kdir("history /typo")
    assert (ran.code, ran.out) == (1, "")
    assert "error: /typo does not exist" in ran.err
    assert kdir("history /") == Ran(0, "", "no changes at or below / are kept\n")


def test_watch_states_what_it_waits_for_and_what_it_leaves_out(kdir: Kdir) -> None:
    mounts = federation_pb2.ListMountsResponse(
        rows=[federation_pb2.MountRow(mount=mount) for mount in ("/la", "/la/tracking", "/ny")]
    )
    handler = answering({"FederationService.ListMounts": mounts}, kdir.tree.at("/").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    notes: list[str] = []
    session: Any = SimpleNamespace(
        resolver=kdir.tree.resolver(), out=SimpleNamespace(note=notes.append)
    )
    note_coverage(session, _path("/"))
    assert notes == ["not included (other clusters, watch each): /la, /la/tracking, /ny"]
    note_coverage(session, _path("/nope"))
    assert notes[1:] == ["/nope does not exist: waiting for it to be created"]


def test_watch_states_that_it_may_leave_out_clusters_that_are_not_listed(kdir: Kdir) -> None:
    mounts = federation_pb2.ListMountsResponse(incomplete_cluster_ids=["kc-x"])
    handler = answering({"FederationService.ListMounts": mounts}, kdir.tree.at("/").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    notes: list[tuple[str, str]] = []
    out = SimpleNamespace(note=lambda *note: notes.append(note))
    session: Any = SimpleNamespace(resolver=kdir.tree.resolver(), out=out)
    note_coverage(session, _path("/"))
    incomplete = "mounts of kc-x: the list is incomplete, other clusters may be mounted there"
    assert notes == [(incomplete, "warn")]


def test_history_shows_what_people_did_and_what_came_of_it(kdir: Kdir) -> None:
    def topic(**fields: Any) -> entry_pb2.Entry:
        return entry_pb2.Entry(topic=entry_pb2.Topic(physical_name="a", **fields))

    def change(path: str, before: entry_pb2.Entry, after: entry_pb2.Entry) -> Any:
        return watch_pb2.ChangeEvent(
            path=path,
            action=watch_pb2.CHANGE_ACTION_UPDATE,
            kind=entry_pb2.ENTRY_KIND_TOPIC,
            before=before,
            after=after,
        )

    grown = topic(partitions=3)
    grown.policies.partitions = 12
    events = [
        change("/la/a", topic(provision=2), topic(provision=2, provision_attempt="a7d5")),
        change("/la/a", topic(provision=2), topic(provision=2, drift_count=1)),
        change("/la/__deleted/01e7/a", topic(partitions=1), topic(partitions=2)),
        change("/la/a", topic(partitions=3), grown),
        change("/la/a", topic(partitions=3), topic(partitions=12, provision_attempt="a7d5")),
        watch_pb2.ChangeEvent(
            path="/la/gone",
            action=watch_pb2.CHANGE_ACTION_DELETE,
            kind=entry_pb2.ENTRY_KIND_TOPIC,
            before=topic(provision=2, provision_attempt="a7d5"),
        ),
    ]
    answer = watch_pb2.ListChangesResponse(events=events)
    handler = answering({"WatchService.ListChanges": answer}, kdir.tree.at("/").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    rows = [line.split("\t") for line in kdir("history /").lines]
    assert [(row[2], row[4], row[6]) for row in rows] == [
        ("update", "/la/a", "partitions: - → 12"),
        ("update", "/la/a", "kafka partitions: 3 → 12"),
        ("delete", "/la/gone", ""),
    ]
    assert len(kdir("history / -n 1").lines) == 1
    assert len(kdir("history / -o json").objects) == 6


def test_R5_history_shows_no_changes_of_others(kdir: Kdir) -> None:
    """By its own mount: what a server claims in its answer counts for nothing."""
    claimed = resolve_pb2.Authority(cluster=entry_pb2.Cluster(cluster="ny", mount="/"))
    changes = [
        ("/ny/search/a", ""),
        ("/la/secret", ""),
        ("/la/secret", "/ny/search/b"),
        ("/ny/search/../../la", ""),
        ("/ny/other/b", "/ny/search/b"),
        ("/ny/__deleted/1", "/la/secret/removed/before/the/mount/was/moved"),
    ]
    events = [watch_pb2.ChangeEvent(path=path, path_before=before) for path, before in changes]
    answer = watch_pb2.ListChangesResponse(authority=claimed, events=events)
    handler = answering({"WatchService.ListChanges": answer}, kdir.tree.at("/ny").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20003", handler)
    for form, count in (("name", 2), ("json", 3)):
        ran = kdir(f"history /ny/search -o {form}")
        assert (ran.code, len(ran.lines)) == (3, count)
        assert "secret" not in ran.out
        assert ran.err == (
            "not shown: 3 changes at paths outside /ny, where the cluster ny is mounted\n"
        )


@pytest.mark.parametrize(
    ("revisions", "why"),
    [((), "page after page without rows"), ((7,), "rows again"), ((9, 7), "rows again")],
)
def test_a_history_whose_pages_do_not_end_is_ended(
    kdir: Kdir, revisions: tuple[int, ...], why: str
) -> None:
    asked: list[watch_pb2.ListChangesRequest] = []

    def answer(_: watch_pb2.ListChangesRequest) -> watch_pb2.ListChangesResponse:
        # Of a removal in progress, which is no row for people: no count ends it.
        return watch_pb2.ListChangesResponse(
            events=[
                watch_pb2.ChangeEvent(path="/__deleted/01e7/a", revision=one) for one in revisions
            ],
            next_page_token=f"fresh {len(asked)}",
        )

    handler = answering({"WatchService.ListChanges": answer}, kdir.tree.at("/").answer, asked)
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    ran = kdir("history /")
    assert (ran.code, ran.out) == (3, "")
    assert f"/: its server sends {why}" in ran.err


def test_stat_of_a_mount_shows_that_changes_are_stopped(kdir: Kdir) -> None:
    entry = directory_pb2.GetEntryResponse(
        entry=entry_pb2.Entry(path="/", directory=entry_pb2.Directory())
    )
    entry.authority.cluster.mount = "/"
    status = admin_pb2.GetStatusResponse(kafka=admin_pb2.KafkaStatus(stop_reason="6 vanished"))
    answers = {"DirectoryService.GetEntry": entry, "AdminService.GetStatus": status}
    handler = answering(answers, kdir.tree.at("/").answer, [])
    kdir.tree.transport.serve("127.0.0.1:20000", handler)
    assert "stopped\t6 vanished (kdir ack /)" in kdir("stat /").lines
    assert kdir("stat / -o json").objects[0]["stop_reason"] == "6 vanished"


# -- leaving early -------------------------------------------------------------------------------


def test_ctrl_c_is_130_and_quiet(kdir: Kdir) -> None:
    def interrupt(_method: str, _request: object) -> object:
        raise KeyboardInterrupt

    kdir.tree.transport.serve("127.0.0.1:20000", interrupt)
    assert kdir("ls /") == Ran(130, "", "")


def test_several_servers_are_asked_in_rotation(kdir: Kdir) -> None:
    ran = run(["--at", "127.0.0.1:9,127.0.0.1:20003", "ls", "/ny"], kdir.tree.transport)
    assert ran.lines == ["bids", "search/"]


def test_which_of_an_unknown_cluster_is_absent_only_if_all_mounts_are_linked(
    kdir: Kdir, tree: MemoryDirectory
) -> None:
    ran = kdir("which la-traking x")
    assert (ran.code, "did you mean la-tracking" in ran.err) == (1, True)
    tree.stop("/ny")
    ran = kdir("which la-traking x")
    assert (ran.code, "it may be at or below /ny" in ran.err) == (3, True)
    assert "known clusters, and which are linked: kdir mounts" in ran.err


def test_which_of_an_unknown_cluster_is_not_absent_where_the_list_of_mounts_is_incomplete(
    kdir: Kdir, tree: MemoryDirectory
) -> None:
    root = tree.at("/")

    def incomplete(method: str, request: Any) -> Any:
        answer = root.answer(method, request)
        if method == "FederationService.ListMounts":
            answer.incomplete_cluster_ids.append(root.cluster_id)
        return answer

    tree.transport.serve(root.endpoint, incomplete)
    ran = kdir("which la-traking x")
    assert ran.code == 3
    assert "no cluster 'la-traking' is known; the root's list of mounts is incomplete" in ran.err
    assert "did you mean la-tracking" in ran.err


# -- answers of a copy ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    ["ls /la/tracking", "ls -R /la", "tree /la", "resolve /la/tracking/orders",
     "resolve /la/tracking/orders /la/tracking/search/clicks"],
)  # fmt: skip
@pytest.mark.parametrize("state", ["unavailable", "sealed"])
def test_a_stale_answer_is_reported_once_a_cluster(
    kdir: Kdir, tree: MemoryDirectory, line: str, state: str
) -> None:
    owner = tree.at("/la/tracking")

    def stale(method: str, request: Any) -> Any:
        answer = owner.answer(method, request)
        for one in [answer.authority] if hasattr(answer, "authority") else answer.authorities:
            one.stale, one.age_seconds, one.sealed = True, 120.0, state == "sealed"
        return answer

    tree.transport.serve(owner.endpoint, stale)
    ran = kdir(line)
    note = f"la-tracking: stale: its store has been {state} for 2m\n"
    assert (ran.code, ran.err.count(note)) == (0, 1), ran.err
    tree.transport.serve(owner.endpoint, owner.answer)
    root = tree.at("/")

    def stale_referral(method: str, request: Any) -> Any:
        answer = root.answer(method, request)
        answer.authority.stale = True
        return answer

    tree.transport.serve(root.endpoint, stale_referral)
    assert "stale" not in kdir("resolve /la/tracking/orders").err


_UNCONFIRMED_LINES = (
    "ls /la/tracking", "ls -R /la", "resolve /la/tracking/orders",
    "resolve /la/tracking/orders /la/tracking/search/clicks", "which la-tracking orders",
    "stat /la/tracking/orders", "effective /la/tracking/orders", "grants /la/tracking/orders",
    "check alice read /la/tracking/orders", "check alice read --any topic /la/tracking",
    "check alice read --any topic", "ls --detached /la/tracking",
    "effective --diff /la/tracking/orders", "effective --diff /la/tracking/",
)  # fmt: skip


def answer_unconfirmed(tree: MemoryDirectory, seconds: float | None = 400.0) -> None:
    """Makes all answers of /la/tracking unconfirmed for so long; None: confirmed."""
    owner = tree.at("/la/tracking")
    entry = directory_pb2.GetEntryResponse()
    entry.entry.topic.physical_name = "orders"
    entry.authority.cluster.cluster, entry.authority.cluster.mount = "la-tracking", "/la/tracking"
    entry.authority.cluster.cluster_id = owner.cluster_id
    value = policies_pb2.EffectiveValue(field="owner", value="ana")
    grant = access_pb2.Grant(principal="User:ana")
    drift = admin_pb2.Drift(path="/la/tracking/orders", field="acl", expected="there")
    detached = admin_pb2.Adoption(
        physical_name="clicks", path="/la/tracking/clicks", action="detached"
    )
    others = {
        "AdminService.ListDrift": admin_pb2.ListDriftResponse(drifts=[drift]),
        "AdminService.AdoptTopics": admin_pb2.AdoptTopicsResponse(adoptions=[detached]),
        "DirectoryService.GetEntry": entry,
        "AdminService.GetStatus": admin_pb2.GetStatusResponse(),
        "PolicyService.GetEffectivePolicies": policies_pb2.GetEffectivePoliciesResponse(
            values=[value]
        ),
        "AccessService.ListGrants": access_pb2.ListGrantsResponse(grants=[grant]),
        "AccessService.CheckAccess": access_pb2.CheckAccessResponse(allowed=True),
        "AccessService.AuthorizeAny": access_pb2.AuthorizeAnyResponse(allowed=True),
    }
    answered = answering(others, owner.answer, [])

    def unconfirmed(method: str, request: Any) -> Any:
        answer = answered(method, request)
        own = [answer.authority] if hasattr(answer, "authority") else []
        for one in getattr(answer, "authorities", own):
            if seconds is not None:
                one.unconfirmed_seconds = seconds
        return answer

    tree.transport.serve(owner.endpoint, unconfirmed)


@pytest.mark.parametrize("line", [*_UNCONFIRMED_LINES, "tree /la"])
def test_an_unconfirmed_answer_is_reported_once_a_cluster(
    kdir: Kdir, tree: MemoryDirectory, line: str
) -> None:
    answer_unconfirmed(tree)
    ran = kdir(line, at="/la/tracking" if "--any" in line else "/")
    note = "la-tracking: unconfirmed: no parent has confirmed the mount /la/tracking for 6m\n"
    code = 5 if "--diff" in line else 0
    assert (ran.code, ran.err.count(note), ran.err.count("confirmed the mount")) == (code, 1, 1)


def test_an_unconfirmed_referral_is_not_reported(kdir: Kdir, tree: MemoryDirectory) -> None:
    """The answer is that of a cluster that is confirmed, from which nothing was inherited."""
    parent = tree.at("/la")

    def unconfirmed(method: str, request: Any) -> Any:
        answer = parent.answer(method, request)
        own = [answer.authority] if hasattr(answer, "authority") else []
        for one in getattr(answer, "authorities", own):
            one.unconfirmed_seconds = 400.0
        return answer

    tree.transport.serve(parent.endpoint, unconfirmed)
    topics = "/la/tracking/orders", "/la/tracking/search/clicks"
    assert "unconfirmed" not in kdir(f"resolve {topics[0]}").err
    assert "unconfirmed" not in kdir(f"resolve {' '.join(topics)}").err


@pytest.mark.parametrize("line", _UNCONFIRMED_LINES)
def test_json_has_how_long_an_answer_is_unconfirmed(
    kdir: Kdir, tree: MemoryDirectory, line: str
) -> None:
    for seconds in (400.0, None):
        answer_unconfirmed(tree, seconds)
        objects = kdir(f"{line} -o json", at="/la/tracking" if "--any" in line else "/").objects
        assert objects
        for one in objects:
            is_of_it = not line.startswith("ls") or one["path"].startswith("/la/tracking/")
            assert one.get("unconfirmed_seconds") == (seconds if is_of_it else None), one


def test_json_of_drift_in_several_clusters_has_how_long_each_is_unconfirmed(
    kdir: Kdir, tree: MemoryDirectory
) -> None:
    answer_unconfirmed(tree)
    parent, below = tree.at("/la"), tree.at("/la/tracking")
    mounts = federation_pb2.ListMountsResponse(
        rows=[{"mount": "/la/tracking", "cluster": "la-tracking", "cluster_id": below.cluster_id}]
    )
    drift = admin_pb2.Drift(path="/la/pages", field="retention.ms")
    answers = {
        "FederationService.ListMounts": mounts,
        "AdminService.ListDrift": admin_pb2.ListDriftResponse(drifts=[drift]),
        "AdminService.GetStatus": admin_pb2.GetStatusResponse(),
    }
    tree.transport.serve(parent.endpoint, answering(answers, parent.answer, []))
    found = kdir("effective --diff /la/ -o json").objects
    assert [(one["path"], one.get("unconfirmed_seconds")) for one in found] == [
        ("/la/pages", None),
        ("/la/tracking/orders", 400.0),
    ]
