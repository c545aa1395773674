"""kdir as people run it: the installed command on real servers and a real broker."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from deploy.local.ports import free_port
from tests.conftest import SharedBroker
from tests.support.federation import Federation, eventually

KDIR = str(Path(sys.executable).with_name("kdir"))


class Kdir:
    """Runner of ``kdir`` at one of the federation's servers; ``#`` in a line is the tracking
    mount.
    """

    def __init__(self, federation: Federation, home: Path, mount: str) -> None:
        self.federation = federation
        self.mount = mount
        self.environment = {
            **os.environ,
            "KDIR_AT": federation["/la"].address,
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_DATA_HOME": str(home / "data"),
            "NO_COLOR": "1",
            "TERM": "xterm",
        }

    def command(self, line: str) -> list[str]:
        return [KDIR, *line.replace("#", self.mount).split()]

    def run(self, line: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(line),
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, (line, done)
        return done

    def lines(self, line: str, code: int = 0) -> list[str]:
        return self.run(line, code).stdout.splitlines()

    def objects(self, line: str) -> list[dict[str, object]]:
        return [json.loads(text) for text in self.lines(line)]

    def start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(line),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def on_a_terminal(self, line: str, answer: str = "") -> str:
        """Returns all that a person sees, with the answer they type."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            self.command(line),
            env=self.environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        if answer:
            os.write(ours, answer.encode())
        seen = b""
        try:
            while select.select([ours], [], [], 60)[0]:
                part = os.read(ours, 65_536)
                if not part:
                    break
                seen += part
        except OSError:  # nobody holds the other end any more
            pass
        os.close(ours)
        process.wait(10)
        return seen.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def federation(
    tmp_path_factory: pytest.TempPathFactory, own_broker: SharedBroker
) -> Iterator[Federation]:
    """Yields five clusters, one with a Kafka, and one that no parent has mounted yet."""
    with Federation(tmp_path_factory.mktemp("federation")) as federation:
        federation.start("/")
        federation.join("/la", "/")
        federation.join("/ny", "/")
        federation.join(
            "/la/tracking",
            "/la",
            kafka={
                "bootstrap": own_broker.bootstrap,
                "ceiling": ["create", "delete"],
                "split_on": ".",
                "sweep_interval_seconds": 1,
            },
        )
        federation.start("/la/geo", "/la")
        yield federation


@pytest.fixture(scope="module")
def topics(own_broker: SharedBroker) -> str:
    """Returns three topics that were there before kdir; the prefix of their names, which no test
    shares.
    """
    prefix = f"cli{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    names = [f"{prefix}.orders", f"{prefix}.orders.dlq", f"{prefix}.search.clicks"]
    for future in admin.create_topics([NewTopic(name, 3, 1) for name in names]).values():
        future.result(30)
    return prefix


@pytest.fixture(scope="module")
def kdir(federation: Federation, topics: str, tmp_path_factory: pytest.TempPathFactory) -> Kdir:
    mount = f"/la/tracking/{topics}"
    kdir = Kdir(federation, tmp_path_factory.mktemp("home"), mount)
    eventually(lambda: "search/" in kdir.lines("ls #"), 60)
    return kdir


# -- reading -------------------------------------------------------------------------------------


def test_pages_in_a_browser(kdir: Kdir) -> None:
    with kdir.start("ui --listen 127.0.0.1:0") as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip().removesuffix("/")

            def read(path: str) -> str:
                with urlopen(url + path.replace("#", kdir.mount), timeout=60) as answer:  # noqa: S310
                    return str(answer.read().decode())

            directory = read("#/")
            for path in ("#/orders", "#/orders/", "#/search/"):
                assert f'href="{path.replace("#", kdir.mount)}"' in directory
            topic = read("#/orders?kafka=1")
            assert "kcat -C -b " in topic
            partitions = topic.partition("Partitions in Kafka</h2>")[2].partition("</section>")[0]
            assert [line.split()[0] for line in partitions.splitlines()[1:4]] == ["0", "1", "2"]
            assert "class=error" not in directory + topic
            assert 'href="/la/tracking/"' in read("/~mounts")
            assert f"{kdir.mount}/search/clicks" in read("/~find?q=click&in=#/")
        finally:
            process.terminate()


def test_a_template_over_the_objects_of_json(kdir: Kdir) -> None:
    assert kdir.lines("ls -k topic -o jsonpath={.path}={.topic.partitions} #") == [
        f"{kdir.mount}/orders=3"
    ]
    wide = kdir.lines("ls -o wide #")
    assert wide[0].split()[-5:] == ["TOPIC", "ID", "CHANGED", "CHANGED", "BY"]


def test_ls(kdir: Kdir) -> None:
    assert kdir.lines("ls #") == ["orders", "orders/", "search/"]
    assert kdir.lines("ls -o name #/orders/") == [f"{kdir.mount}/orders/dlq"]
    (one,) = kdir.objects("ls -o json #/search")
    assert one["path"] == f"{kdir.mount}/search/clicks"


def test_ls_long_on_a_terminal(kdir: Kdir) -> None:
    seen = kdir.on_a_terminal("ls -l #").splitlines()
    assert seen[0].split() == [
        "KIND", "NAME", "PARTITIONS", "RF", "RETENTION", "OWNER", "TOPICS", "STATE",
        "LOCATION",
    ]  # fmt: skip
    assert seen[1].split()[:4] == ["topic", "orders", "3", "1"]
    assert seen[2].split()[:2] == ["dir", "orders/"]
    columns = {line.index("la-tracking") for line in seen[1:]}
    assert len(columns) == 1, seen


def test_ls_of_globs(kdir: Kdir) -> None:
    assert kdir.lines("ls #/*/c*") == [f"{kdir.mount}/search/clicks"]
    assert kdir.lines(f"ls /la/**/{kdir.mount.rpartition('/')[2]}/**/dlq") == [
        f"{kdir.mount}/orders/dlq"
    ]
    assert kdir.lines("ls #/o*/") == [f"{kdir.mount}/orders/"]
    assert kdir.lines("ls /*/tra*") == ["/la/tracking/"]
    assert kdir.run("ls #/nothing*", 1).stderr.startswith("error: nothing matches")


def test_tree(kdir: Kdir) -> None:
    lines = kdir.lines("tree -t #")
    drawn = [re.sub(r"(?<=\w)/? .*", "", line) for line in lines]
    assert drawn == [
        kdir.mount, "├── orders", "├── orders", "│   └── dlq", "└── search", "    └── clicks",
    ]  # fmt: skip


def test_tree_shows_mounts(kdir: Kdir) -> None:
    lines = kdir.lines("tree -L 2 /")
    assert any(re.match(r"├── la/ +mount +la ", line) for line in lines), lines
    assert any(
        re.match(r"│   └── tracking/ +mount +la-tracking +\d+ topics?$", line) for line in lines
    )


def test_stat(kdir: Kdir) -> None:
    facts = dict(line.split("\t") for line in kdir.lines("stat #/search/clicks"))
    assert facts["kind"] == "topic"
    assert facts["topic"] == f"{kdir.mount.rpartition('/')[2]}.search.clicks"
    assert len(facts["topic id"]) == 22
    assert facts["state"] == "active"
    assert dict(line.split("\t") for line in kdir.lines("stat /la/tracking"))["kind"] == "mount"
    behind = dict(line.split("\t") for line in kdir.lines("stat /la/tracking/"))
    assert behind["kind"] == "directory"
    # Asked at the mounted cluster itself, the mount is one, too.
    assert dict(line.split("\t") for line in kdir.lines("stat /la"))["kind"] == "mount"


def test_resolve_which_and_trace(kdir: Kdir, own_broker: SharedBroker) -> None:
    topic = f"{kdir.mount.rpartition('/')[2]}.search.clicks"
    expected = f"-b {own_broker.bootstrap} -t {topic}"
    for at in ("/", "/la", "/ny", "/la/tracking"):
        address = kdir.federation[at].address
        assert kdir.lines(f"--at {address} resolve -o kcat #/search/clicks") == [expected]
    assert kdir.lines(f"which la-tracking {topic} -o name") == [f"{kdir.mount}/search/clicks"]
    rows = [line.split("\t") for line in kdir.lines("trace #/search/clicks")]
    assert rows[-2][2] == "authoritative"
    assert rows[-1][:2] == ["=", f"la-tracking:{topic}"]


def test_absent(kdir: Kdir) -> None:
    for line in ("ls #/nope", "resolve #/nope", "stat #/nope", "rm #/nope", "effective #/nope"):
        assert "(ABSENT)" in kdir.run(line, 1).stderr
    assert kdir.run("which la-tracking no.such.topic", 1).stdout == ""


def test_a_cluster_is_never_chosen_by_chance(
    kdir: Kdir, tmp_path: Path, own_broker: SharedBroker
) -> None:
    la, tracking = (kdir.federation[one].address for one in ("/la", "/la/tracking"))
    topic = f"{kdir.mount.rpartition('/')[2]}.search.clicks"
    both = f"--at {tracking},{la}"
    for verb in (f"which {topic}", "features", "verify --skip-kafka", "parent attach",
                 f"backup --to {tmp_path}/b.kdir"):  # fmt: skip
        refused = kdir.run(f"{both} {verb}", 2).stderr
        assert f"several clusters: la-tracking ({tracking}), la ({la})" in refused, verb
        assert "--cluster la-tracking" in refused
    refused = kdir.run(f"{both} check alice read --any topic", 2).stderr
    assert "say which is meant: /la/tracking\n" in refused
    silent = f"127.0.0.1:{free_port()}"
    for verb in ("parent attach", "parent detach --keep-inherited", "features finalize"):
        refused = kdir.run(f"--at {silent},{tracking} {verb} --yes", 2).stderr
        assert f"{silent} did not answer" in refused, verb
        assert "say which is meant: --cluster la-tracking" in refused, verb
    assert "la-tracking" in kdir.run(f"--at {silent},{tracking} features").stderr
    assert not list(tmp_path.glob("*.kdir"))
    assert (
        "la-tracking: compared"
        in kdir.run(f"{both} verify --skip-kafka --cluster la-tracking").stderr
    )
    assert "la: compared" in kdir.run("verify --skip-kafka").stderr
    assert kdir.run(f"{both} features --cluster la").stderr.startswith("la: level")
    assert kdir.run("features --cluster la-tracking").stderr.startswith("la-tracking: level")
    which = f"{both} which {topic} -o name --cluster la-tracking"
    assert kdir.lines(which) == [f"{kdir.mount}/search/clicks"]
    anywhere = kdir.run(f"{both} check alice read --any topic /la")
    assert "of cluster la, not only" in anywhere.stderr
    unknown = kdir.run(f"{both} features --cluster la-traking", 1).stderr
    assert "no cluster 'la-traking' is mounted; did you mean la-tracking" in unknown
    # The root has no mount, and is found from below all the same.
    root = kdir.federation["/"].status().authority.cluster.cluster
    assert kdir.run(f"features --cluster {root}").stderr.startswith(f"{root}: level")


def test_which_of_an_unknown_cluster_is_absent(kdir: Kdir) -> None:
    refused = kdir.run("which la-traking search.clicks", 1).stderr
    assert "no cluster 'la-traking' is mounted; did you mean la-tracking?" in refused


def test_servers_are_asked_in_the_order_in_which_they_are_named(kdir: Kdir) -> None:
    la, ny = (kdir.federation[one].address for one in ("/la", "/ny"))
    for _ in range(5):
        for first, second in ((la, ny), (ny, la)):
            steps = kdir.objects(f"--at {first},{second} trace / -o json")
            assert steps[0]["endpoint"] == first


# -- writing -------------------------------------------------------------------------------------


def test_mkdir_set_effective_unset(kdir: Kdir) -> None:
    kdir.run("mkdir #/ads/us")
    assert "ALREADY_EXISTS" in kdir.run("mkdir #/ads/us", 5).stderr
    kdir.run("mkdir -p #/ads/us")
    kdir.run("set #/ads owner=ads retention.ms=7d tags.tier=2")
    kdir.run("set #/ads/us owner=us")
    rows = {line.split("\t")[0]: line.split("\t") for line in kdir.lines("effective #/ads/us")}
    owner, retention = rows["owner"], rows["retention.ms"]
    assert owner[1:4] == ["us", f"{kdir.mount}/ads/us", "-"]
    assert owner[4].startswith("20")  # when: in full where nobody looks on
    assert owner[5] == f"ads at {kdir.mount}/ads"
    assert (retention[1:3], retention[5]) == (["604800000", f"{kdir.mount}/ads"], "-")
    what_if = kdir.run("effective #/ads --if owner=x")
    assert "the effective value of 0 topics" in what_if.stderr
    assert "owner\tx" in what_if.stdout
    shown = next(line for line in kdir.lines("ls -l #/ads") if "us/" in line)
    assert shown.split("\t")[4:6] == ["604800000 ^", "us"]
    kdir.run("unset #/ads/us owner")
    kdir.run("unset --clear #/ads/us retention.ms")
    rows = {line.split("\t")[0]: line.split("\t") for line in kdir.lines("effective #/ads/us")}
    assert rows["owner"][1:3] == ["ads", f"{kdir.mount}/ads"]
    cleared = rows["retention.ms"]
    assert cleared[1:3] == ["(cleared)", f"{kdir.mount}/ads/us"]
    assert cleared[5] == f"604800000 at {kdir.mount}/ads"


def test_a_tree_as_a_file(kdir: Kdir, tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    documents = """
    {path: #/git, kind: directory, policies: {owner: git, closed: yes, retention.ms: 7d},
     grants: [{principal: "*", operations: [all]}]}
    ---
    {path: #/git/t, kind: topic, partitions: 2, policies: {tags.v: 1.10, retention.ms: null}}
    ---
    {path: #/git/in, kind: directory, policies: {read_only: true}, grants: []}
    ---
    {path: #/git/in/u, kind: topic, grants: [{principal: a, operations: [write], deny: true}]}
    ---
    {path: #/git/l, kind: link, targets: [#/git, /ny], mode: union}
    ---
    {path: /la/tracking, kind: mount, cluster: la-tracking}
    """
    file.write_text(dedent(documents).replace("#", kdir.mount))
    before = kdir.lines("ls #")
    planned = kdir.lines(f"apply {file} --plan")
    assert kdir.lines("ls #") == before
    assert kdir.lines(f"apply {file}") == planned
    assert kdir.run(f"apply {file}").stderr == "nothing to do\n"
    exported = kdir.run("export #/git").stdout
    (made,) = kdir.objects("stat -o json #/git/t")
    assert made["topic"]["partitions"] == 2  # type: ignore[index]
    assert kdir.run("apply -", stdin=exported).stderr == "nothing to do\n"
    kdir.run("set #/git retention.ms=1h tags.more=1")
    kdir.run("ln #/git #/git/extra")
    kdir.run("ln --union #/git /ny #/git/l2")
    kdir.run("set #/git/l mode=first")
    kdir.run("grant bob read #/git/t")
    assert "needs --yes" in kdir.run("apply - --prune #/git", 2, stdin=exported).stderr
    kdir.run("apply - --prune #/git --yes", stdin=exported)
    assert kdir.run("export #/git").stdout == exported
    # As another tree of the same content: what is read-only or closed hinders nothing.
    elsewhere = exported.replace(f"{kdir.mount}/git", f"{kdir.mount}/copy")
    kdir.run("apply -", stdin=elsewhere)
    assert kdir.run("export #/copy").stdout == elsewhere
    wrong = exported.replace("tags.v: '1.10'", "flush.ms: soon")
    refused = kdir.run("apply -", 2, stdin=wrong.replace("/git", "/new")).stderr
    assert "-: document 5: create topic" in refused
    assert "flush.ms" in refused
    assert "new/" not in kdir.lines("ls #")
    mounts = kdir.run("export /la").stdout
    assert "path: /la/tracking\nkind: mount\ncluster: la-tracking\n" in mounts
    assert kdir.run("apply -", stdin=mounts).stderr.endswith("nothing to do\n")
    kdir.run("unset #/git/in read_only")
    kdir.run("unset #/copy/in read_only")
    kdir.run("rm -r -y #/git #/copy")


def test_etags_guard_what_was_seen(kdir: Kdir) -> None:
    kdir.run("mkdir #/guarded")
    (seen,) = kdir.objects("stat -o json #/guarded")
    kdir.run("set #/guarded owner=a")
    assert "ETAG_MISMATCH" in kdir.run(f"set #/guarded owner=b --etag {seen['etag']}", 5).stderr


def test_create_move_remove(kdir: Kdir) -> None:
    kdir.run("mkdir #/made/deeper")
    prefix = kdir.mount.rpartition("/")[2]
    assert f"topic {prefix}.made.x of la-tracking" in kdir.run("create -p 2 #/made/x").stderr
    again = "create --if-not-exists #/made/x"
    assert f"unchanged: {kdir.mount}/made/x exists: topic {prefix}.made.x of la-tracking, 2 " in (
        kdir.run(again).stderr
    )
    assert "not other" in kdir.run(f"{again} --physical other", 5).stderr
    kdir.run("create #/made/x", 5)
    (made,) = kdir.objects("stat -o json #/made/x")
    assert made["topic"]["provision"] == "PROVISION_ACTIVE"  # type: ignore[index]
    kdir.run("mv #/made/x #/made/deeper/")
    assert kdir.lines("ls #/made/deeper") == ["x"]
    assert "/made is a directory" in kdir.run("rm #/made", 2).stderr
    assert "with 1 topic and 1 directory below it, with the data that Kafka has of them" in (
        kdir.run("rm -r --plan #/made").stderr
    )
    kdir.run("rm -r -y #/made")
    assert "made/" not in kdir.lines("ls #")


def test_create_where_there_is_no_directory_says_how_to_make_it(kdir: Kdir) -> None:
    assert kdir.run("create #/serach/x", 1).stderr.splitlines() == [
        f"error: {kdir.mount}/serach does not exist (INVALID_NAMESPACE)",
        f"  did you mean {kdir.mount}/search? its content: kdir ls {kdir.mount}/search",
        f"  nearest directory above: {kdir.mount}",
        f"  to create it: kdir mkdir {kdir.mount}/serach",
    ]


def test_unset_of_what_is_not_set_is_no_change(kdir: Kdir) -> None:
    kdir.run("mkdir #/bare")
    kdir.run("set #/bare owner=a")
    where = f"{kdir.mount}/bare"
    assert f"no change: not set at {where} itself: tags.tier" in (
        kdir.run("unset #/bare tags.tier").stderr
    )
    assert f"unset owner at {where}; not set at {where} itself: tags.tier" in (
        kdir.run("unset #/bare owner tags.tier").stderr
    )


@pytest.mark.parametrize("verb", ["resolve", "stat", "rm", "set # owner=a", "effective"])
def test_a_missing_topic_names_the_similar_one(kdir: Kdir, verb: str) -> None:
    line = verb.replace("#", "#/search/klicks") if "#" in verb else f"{verb} #/search/klicks"
    if verb == "rm":
        line += " -y"
    assert f"  did you mean {kdir.mount}/search/clicks?" in kdir.run(line, 1).stderr
    assert "did you mean" not in kdir.run(line.replace("klicks", "nothing-like-it"), 1).stderr


def test_links_and_unions(kdir: Kdir) -> None:
    kdir.run("ln #/search #/orders #/one")
    assert kdir.lines("ls #/one") == ["clicks"]
    kdir.run("ln --union #/search #/orders #/both")
    assert kdir.lines("ls #/both") == ["clicks", "dlq"]
    assert kdir.on_a_terminal("ls #/both").split() == [
        "clicks", f"{kdir.mount}/search/clicks", "dlq", f"{kdir.mount}/orders/dlq",
    ]  # fmt: skip
    kdir.run("set #/one targets=#/orders")
    assert kdir.lines("ls #/one") == ["dlq"]
    kdir.run("rm -y #/one #/both")
    assert "one/" not in kdir.lines("ls #")


def test_rm_asks_on_a_terminal(kdir: Kdir) -> None:
    kdir.run("mkdir #/asked")
    assert "unchanged" in kdir.on_a_terminal("rm -r #/asked", "n\n")
    assert "asked/" in kdir.lines("ls #")
    assert "removed" in kdir.on_a_terminal("rm -r #/asked", "y\n")
    assert "asked/" not in kdir.lines("ls #")


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("mv #/search #/search/x", 2, "INVALID_MOVE"),
        ("mv #/search /ny/search", 5, "CROSS_MOUNT"),
        ("create #/orders", 5, "ALREADY_EXISTS"),
        ("create /la/x", 5, "ABOVE_CEILING"),
        ("create #/y --physical a/b", 2, "INVALID_PHYSICAL_NAME"),
        ("mount #/search --child kc-nosuch", 5, "MOUNT_SHADOWS"),
        ("watch --after nonsense #", 2, "INVALID_TOKEN"),
    ],
)
def test_refusals_have_their_reason_and_exit_code(
    kdir: Kdir, line: str, code: int, reason: str
) -> None:
    assert f"{reason})" in kdir.run(line, code).stderr


def test_adopt_by_a_map(kdir: Kdir, tmp_path: Path) -> None:
    prefix = kdir.mount.rpartition("/")[2]
    rules = tmp_path / "rules.toml"
    rules.write_text(f'[[rule]]\nmatch = "{prefix}.*"\nsplit_on = "."\ninto = "moved"\n')
    rows = [line.split("\t") for line in kdir.lines(f"adopt # --map {rules} --plan --remap")]
    assert ["move", f"{prefix}.search.clicks", f"/la/tracking/moved/{prefix}/search/clicks"] in [
        row[:3] for row in rows
    ]
    assert "moved/" not in kdir.lines("ls /la/tracking")


# -- changes -------------------------------------------------------------------------------------


def test_watch_and_history(kdir: Kdir) -> None:
    kdir.run("mkdir #/watched")
    watch = kdir.start("watch -o json #/watched")
    try:
        assert watch.stderr is not None
        assert watch.stdout is not None
        assert "watching" in watch.stderr.readline()
        kdir.run("set #/watched owner=x")
        event = json.loads(watch.stdout.readline())
        assert event["path"] == f"{kdir.mount}/watched"
        assert event["action"] == "CHANGE_ACTION_UPDATE"
        assert event["after"]["policies"]["owner"] == "x"
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 130
        assert watch.stderr.read() == ""
    finally:
        watch.kill()
        watch.communicate()
    rows = [line.split("\t") for line in kdir.lines("history #/watched")]
    assert [(row[2], row[4], row[6]) for row in rows] == [
        ("update", f"{kdir.mount}/watched", "owner: - → x"),
        ("insert", f"{kdir.mount}/watched", ""),
    ]
    assert len(kdir.lines("history -n 1 #/watched")) == 1


# -- mounts, servers -----------------------------------------------------------------------------


def test_a_waiting_child_is_shown_and_mounted_by_its_name(kdir: Kdir) -> None:
    eventually(lambda: "la-geo" in kdir.run("mounts").stderr)
    waiting = [one for one in kdir.objects("mounts -o json") if one["state"] == "pending"]
    assert waiting[0]["cluster"] == "la-geo"
    assert waiting[0]["cluster_id"] == kdir.federation["/la/geo"].cluster_id
    assert "mounted la-geo (" in kdir.run("mount /la/geo --child la-geo").stderr
    eventually(
        lambda: any(
            one["mount"] == "/la/geo" and one["state"] == "linked"
            for one in kdir.objects("mounts -o json")
        )
    )
    assert kdir.lines("ls /la/geo") == []
    # All topics of all clusters below, as the mount table has them.
    eventually(
        lambda: (
            f"\t{len(kdir.lines('ls -R -a -k topic -o name /la'))}\tlinked\tla"
            in kdir.lines("ls -l /")[0]
        )
    )
    assert "is a mount" in kdir.run("rm -r /la/geo", 2).stderr
    kdir.run("umount --yes /la/geo")
    assert "geo/" not in kdir.lines("ls /la")


def test_doctor_sees_every_server(kdir: Kdir) -> None:
    seen = {one["authority"]["cluster"]["mount"] for one in kdir.objects("doctor -o json")}  # type: ignore[index]
    assert seen >= {"/", "/la", "/ny", "/la/tracking"}
    assert "all servers healthy" in kdir.run("doctor").stderr
    address = kdir.federation["/ny"].address
    assert len(kdir.lines(f"doctor --local --at {address}")) == 1


def test_what_does_not_answer_is_named_and_exits_3(kdir: Kdir) -> None:
    kdir.run("mkdir #/there /ny/there")
    kdir.run("ln --union #/orders /ny/there /la/mixed")
    assert kdir.lines("ls /la/mixed") == ["dlq"]
    kdir.federation["/ny"].kill()
    try:
        done = kdir.run("ls /la/mixed", 3)
        assert done.stdout == "dlq\n"
        assert "not listed: /ny/there: " in done.stderr
        assert "(UNREACHABLE)" in done.stderr
        assert "(UNREACHABLE)" in kdir.run("resolve /ny/there", 3).stderr
        assert any("unreachable" in line for line in kdir.lines("tree /", 3))
        assert "/ny (ny) at " in kdir.run("doctor", 3).stderr
        assert kdir.lines("ls #/orders/") == ["dlq"]
    finally:
        kdir.federation["/ny"].start()
    eventually(lambda: kdir.run("ls /la/mixed").returncode == 0)


def test_nobody_there_is_3(kdir: Kdir) -> None:
    for line in ("ls /", "doctor", "mounts", "mkdir /x", "which a b"):
        assert "UNREACHABLE" in kdir.run(f"--at 127.0.0.1:1 {line}", 3).stderr


def test_server_is_the_directory_server(kdir: Kdir, tmp_path: Path) -> None:
    done = kdir.run(f"server --check --mount /x --store sqlite:///{tmp_path}/x.sqlite")
    assert "would serve /x" in done.stdout
    assert kdir.run("server --mount nowhere", 2).stderr.startswith("error: ")


# -- data ----------------------------------------------------------------------------------------


def test_produce_and_consume(kdir: Kdir) -> None:
    done = kdir.run("produce -K : #/search/clicks", stdin="k:one\nk:two\nthree\n")
    assert "3 messages to la-tracking:" in done.stderr
    seen = kdir.lines("consume #/search/clicks")
    assert sorted(seen) == ["one", "three", "two"]
    assert [line for line in kdir.lines("consume -K = #/search/clicks") if line[0] == "k"] == [
        "k=one",
        "k=two",
    ]
    assert len(kdir.lines("consume -n 1 #/search/clicks")) == 1
    messages = kdir.objects("consume -o json #/search/clicks")
    assert sorted((one["key"] or "", one["value"]) for one in messages) == [
        ("", "three"), ("k", "one"), ("k", "two"),
    ]  # fmt: skip
    two = next(one for one in messages if one["value"] == "two")
    place = f"--partition {two['partition']} --from {two['offset']}"
    assert kdir.lines(f"consume -n 1 {place} #/search/clicks") == ["two"]
    assert kdir.lines("consume --from 2036-01-01 #/search/clicks") == []
    assert len(kdir.lines("consume --from 2020-01-01 #/search/clicks")) == 3
    assert "it has 3 partitions" in kdir.run("consume --partition 7 #/search/clicks", 2).stderr
    assert kdir.lines("consume #/orders") == []
    assert "is a directory, not a topic" in kdir.run("consume #/search", 2).stderr


def test_leaders_offsets_and_lag_are_kafkas_own(kdir: Kdir, own_broker: SharedBroker) -> None:
    prefix = kdir.mount.rpartition("/")[2]
    topic, group = f"{prefix}.orders.dlq", f"{prefix}-readers"
    kdir.run("produce #/orders/dlq", stdin="a\nb\nc\nd\n")
    leaders, ends = set(), {}
    for line in kdir.lines("stat #/orders/dlq --partitions"):
        partition, leader, replicas, isr, begin, end, issue = line.split("\t")
        assert (replicas, isr, begin, issue) == (leader, leader, "0", "-")
        leaders.add(leader)
        ends[int(partition)] = int(end)
    assert (len(leaders), sum(ends.values()), len(ends)) == (1, 4, 3)
    assert "found no group" in kdir.run("stat #/orders/dlq --groups").stderr

    behind = next(partition for partition, end in ends.items() if end)
    committed = [TopicPartition(topic, *one) for one in (ends | {behind: 0}).items()]
    consumer = Consumer({"bootstrap.servers": own_broker.bootstrap, "group.id": group})
    consumer.commit(offsets=committed, asynchronous=False)
    consumer.close()
    (found,) = kdir.objects("stat #/orders/dlq --groups -o json")
    assert (found["group"], found["state"], found["lag"]) == (group, "empty", ends[behind])
    rows = [line.split("\t") for line in kdir.lines("stat #/orders/dlq --groups")]
    assert [group, "empty", str(behind), "0", *[str(ends[behind])] * 2] in rows
    assert rows[-1] == [group, "empty", "all", "-", "-", str(ends[behind])]

    assert "is a directory, not a topic" in kdir.run("stat # --partitions", 2).stderr
    nobody = f"--timeout 1 -X bootstrap.servers=127.0.0.1:{free_port()}"
    done = kdir.run(f"stat #/orders/dlq --partitions {nobody}", 3)
    assert "KAFKA_UNAVAILABLE" in done.stderr


# -- manners -------------------------------------------------------------------------------------


def test_a_reader_that_closes_the_pipe_sees_nothing(kdir: Kdir) -> None:
    kdir.run("mkdir #/many")
    process = kdir.start("ls -R -l /")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) in {0, 141}  # all may have fitted into the pipe
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_output_to_a_pipe_has_no_colour_and_to_a_terminal_has(kdir: Kdir) -> None:
    assert "\x1b" not in kdir.run("ls -l #").stdout
    coloured = Kdir(kdir.federation, Path(kdir.environment["XDG_CONFIG_HOME"]).parent, kdir.mount)
    del coloured.environment["NO_COLOR"]
    assert "\x1b[" in coloured.on_a_terminal("ls -l #")


def test_completion_asks_the_server_once(kdir: Kdir) -> None:
    def offered(*line: str) -> list[str]:
        return kdir.lines(" ".join(["__complete", "zsh", *line]))

    assert offered("ls", "/la/tr") == ["/la/tracking/"]
    assert offered("ls", "#/or") == [f"{kdir.mount}/orders", f"{kdir.mount}/orders/"]
    nobody = {**kdir.environment, "KDIR_AT": "127.0.0.1:1"}
    done = subprocess.run(
        kdir.command("__complete zsh ls /la/"),
        env=nobody,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_silent_server_is_given_up_on(kdir: Kdir) -> None:
    server = kdir.federation["/la"]
    server.pause()
    try:
        done = kdir.run("--timeout 1 ls /la", 3)
        assert re.search(r"UNREACHABLE|DEADLINE_EXCEEDED", done.stderr)
    finally:
        server.resume()


def test_a_directory_of_many_pages_is_listed_whole_and_in_order(kdir: Kdir) -> None:
    names = [f"d{number:04}" for number in range(1_050)]  # a page has 1,000
    kdir.run("mkdir " + " ".join(f"#/pages/{name}" for name in names))
    assert kdir.lines("ls #/pages") == [f"{name}/" for name in names]
    assert len(kdir.lines("ls -l -o table #/pages")) == 1 + len(names)


def test_a_listing_of_ones_own_server_loads_nothing_that_it_does_not_need(kdir: Kdir) -> None:
    code = (
        "import sys; from resolver.cli.main import main; code = main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr); sys.exit(code)"
    )
    at = kdir.federation["/la/tracking"].address
    done = subprocess.run(
        [sys.executable, "-c", code, *kdir.command(f"--at {at} ls #")[1:]],
        env=kdir.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "grpc" in loaded
    heavy = {
        "resolver.client", "resolver.resolution.state_machine", "resolver.directory_listing",
        "dataclasses", "tomllib",
        "json", "pathlib", "argparse", "importlib.metadata", "confluent_kafka", "duckdb", "pyarrow",
        "pyspark", "rich", "google.protobuf.json_format", "kdir.v1.admin_pb2", "kdir.v1.watch_pb2",
    }  # fmt: skip
    assert not loaded & heavy
