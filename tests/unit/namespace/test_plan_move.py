"""Moving entries: what stays the same, what becomes another path, what is refused."""

from __future__ import annotations

import pytest

from directory.namespace.command import (
    CreateDirectory,
    CreateLink,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    UpdateEntry,
)
from directory.namespace.entry import Kind, etag_of
from directory.namespace.keys import mounted_key
from directory.namespace.mounted import claim_start, mounted_at
from directory.store.base import Put
from resolver.errors import (
    Absent,
    AlreadyExists,
    CrossMount,
    EtagMismatch,
    InvalidArgument,
    InvalidMove,
    InvalidNamespace,
    InvalidPath,
    KdirError,
    MountShadows,
    NotAuthoritative,
    QuotaExceeded,
    ReadOnly,
)
from resolver.path import Path
from tests.support.trees import Cluster, path, reported


def mkdir(text: str) -> CreateDirectory:
    return CreateDirectory(path=path(text), make_parents=True)


def topic(text: str) -> CreateTopic:
    return CreateTopic(path=path(text))


def link(text: str, *targets: str) -> CreateLink:
    return CreateLink(path=path(text), targets=tuple(map(path, targets)))


def mount(text: str, cluster_id: str = "kc-1") -> CreateMount:
    return CreateMount(path=path(text), cluster_id=cluster_id)


def mv(text: str, new: str, **fields: object) -> MoveEntry:
    return MoveEntry(path=path(text), new_path=path(new), **fields)  # type: ignore[arg-type]


def refused(cluster: Cluster, command: object, error: type[KdirError], arguments: str) -> KdirError:
    before = cluster.rows.revision
    with pytest.raises(error, match=arguments) as raised:
        cluster.do(command)  # type: ignore[arg-type]
    assert cluster.rows.revision == before
    return raised.value


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.do(mkdir("/la/a/b"), topic("/la/a/t"), topic("/la/a/b/u"), mkdir("/la/z"))
    return made


def test_a_topic_keeps_its_id_and_its_physical_name(cluster: Cluster) -> None:
    before = cluster.topic("/la/a/t")
    made = cluster.do(mv("/la/a/t", "/la/z/new"))
    after = cluster.topic("/la/z/new")
    assert reported(made.changes) == ["~ topic /la/z/new from /la/a/t"]
    assert (after.entry_id, after.physical_name) == (before.entry_id, "a.t")
    assert etag_of(after) != etag_of(before)
    assert made.entry == after
    assert made.path == path("/la/z/new")
    assert cluster.entry("/la/a/t") is None
    # The claim is of the name, not of the path.
    assert b"p/a_t" in cluster.rows.under(b"p/")


def test_a_directory_moves_in_one_small_transaction(cluster: Cluster) -> None:
    cluster.do(*(topic(f"/la/a/b/t{number}") for number in range(100)))
    made = cluster.do(mv("/la/a", "/la/z/a"))
    assert len(made.writes) == 2
    assert reported(made.changes) == ["~ dir /la/z/a from /la/a"]
    assert cluster.topic("/la/z/a/b/t7").physical_name == "a.b.t7"
    assert cluster.snapshot.topic_count == 102


def test_a_move_to_the_same_path_is_refused(cluster: Cluster) -> None:
    refused(cluster, mv("/la/a", "/la/a"), InvalidMove, "is there already")


@pytest.mark.parametrize("new", ["/la/a/x", "/la/a/b/x", "/la/a/b"])
def test_a_directory_does_not_move_below_itself(cluster: Cluster, new: str) -> None:
    refused(cluster, mv("/la/a", new), InvalidMove, "below itself")


def test_a_topic_may_move_below_its_own_name(cluster: Cluster) -> None:
    cluster.do(topic("/la/a"), mv("/la/a", "/la/a/b/a", kind=Kind.TOPIC))
    assert cluster.topic("/la/a/b/a").physical_name == "a"


def test_the_root_is_moved_by_the_parent(cluster: Cluster) -> None:
    refused(cluster, mv("/la", "/la/x"), InvalidMove, "root directory")
    refused(cluster, mv("/la/a", "/la"), AlreadyExists, "root directory")


def test_no_move_crosses_into_another_cluster(cluster: Cluster) -> None:
    cluster.do(mount("/la/z/m"))
    wrong = refused(cluster, mv("/la/a", "/ny/a"), CrossMount, "not below /la")
    assert wrong.metadata["new_path"] == "/ny/a"
    wrong = refused(cluster, mv("/la/a", "/la/z/m/x/a"), CrossMount, "mounted at /la/z/m")
    assert wrong.metadata["mount"] == "/la/z/m"
    refused(cluster, mv("/la/z/m/x", "/la/x"), NotAuthoritative, "/la/z/m is the mount")


def test_the_target_must_be_free_and_its_directory_there(cluster: Cluster) -> None:
    cluster.do(link("/la/l", "/ny"), mount("/la/m"))
    refused(cluster, mv("/la/a", "/la/z"), AlreadyExists, r"/la/z already exists \(directory\)")
    refused(cluster, mv("/la/a", "/la/m"), AlreadyExists, "mount of")
    refused(cluster, mv("/la/a/t", "/la/m"), AlreadyExists, "mount of")
    refused(cluster, mv("/la/a/t", "/la/x/t"), InvalidNamespace, "/la/x does not exist")
    refused(cluster, mv("/la/a/t", "/la/l/t"), InvalidNamespace, "use /ny/t")
    refused(cluster, mv("/la/a/t", "/la/__x"), InvalidArgument, "'__x'")
    refused(cluster, mv("/la/none", "/la/x"), Absent, "/la/none does not exist")


def test_a_topic_moves_beside_a_directory_of_its_name(cluster: Cluster) -> None:
    cluster.do(mv("/la/a/t", "/la/z"), mv("/la/z", "/la/a/b", kind=Kind.TOPIC))
    assert cluster.show() == "a/\n  b = a.t [pending]\n  b/\n    u = a.b.u [pending]\nz/"


def test_a_link_is_left_where_one_is_wanted(cluster: Cluster) -> None:
    made = cluster.do(mv("/la/a", "/la/z/a", leave_link=True))
    assert reported(made.changes) == ["~ dir /la/z/a from /la/a", "+ link /la/a"]
    assert cluster.show().startswith("a -> /la/z/a\nz/")
    cluster.do(mv("/la/z/a/t", "/la/t", leave_link=True))
    assert "t -> /la/t" in cluster.show()


def test_a_topics_link_needs_the_place_of_a_container(cluster: Cluster) -> None:
    cluster.do(mkdir("/la/a/t"))
    refused(
        cluster, mv("/la/a/t", "/la/t", leave_link=True), AlreadyExists, "/la/a/t already exists"
    )
    cluster.do(mv("/la/a/t", "/la/t"))


def test_a_link_does_not_move_above_its_target(cluster: Cluster) -> None:
    cluster.do(link("/la/z/l", "/la/x/y"))
    refused(cluster, mv("/la/z/l", "/la/x"), InvalidMove, "lead to itself")
    cluster.do(mv("/la/z/l", "/la/k"))


# -- mounts --------------------------------------------------------------------------------------


def test_a_moved_mount_gets_a_new_epoch(cluster: Cluster) -> None:
    cluster.do(mount("/la/m"))
    cluster.do(mv("/la/m", "/la/z/m", leave_link=True))
    assert cluster.show().endswith("m -> /la/z/m\nz/\n  m <- kc-1 raised")
    assert cluster.snapshot.fact(mounted_key("kc-1")) is not None


def test_a_claim_keeps_where_the_mount_was_mounted(cluster: Cluster) -> None:
    cluster.do(mount("/la/a/m"))

    def at() -> str:
        (_, entry), *_ = cluster.snapshot.mounts()
        return mounted_at(cluster.snapshot, entry)

    assert at() == "/la/a/m"
    cluster.do(mv("/la/a/m", "/la/z/m"))
    cluster.do(mv("/la/z", "/la/y"))
    assert at() == "/la/a/m"
    # Of older versions it does not say so: then it is where it stood before its next move.
    key = mounted_key("kc-1")
    (_, entry), *_ = cluster.snapshot.mounts()
    cluster.snapshot = cluster.snapshot.apply(
        cluster.snapshot.revision + 1, (Put(key, claim_start(entry)),)
    )
    assert at() == ""
    cluster.do(mv("/la/y/m", "/la/m"))
    assert at() == "/la/y/m"


def test_mounts_below_a_moved_directory_get_new_epochs(cluster: Cluster) -> None:
    cluster.do(mount("/la/a/m"), mount("/la/a/b/n", "kc-2"), mount("/la/z/o", "kc-3"))
    made = cluster.do(mv("/la/a", "/la/y"))
    assert reported(made.changes) == [
        "~ mount /la/y/b/n from /la/a/b/n",
        "~ mount /la/y/m from /la/a/m",
        "~ dir /la/y from /la/a",
    ]
    assert cluster.show().splitlines() == [
        "y/",
        "  b/",
        "    n <- kc-2 raised",
        "    u = a.b.u [pending]",
        "  m <- kc-1 raised",
        "  t = a.t [pending]",
        "z/",
        "  o <- kc-3",
    ]


def test_a_mount_that_comes_below_meanwhile_is_noticed(cluster: Cluster) -> None:
    made = cluster.plan(mv("/la/a", "/la/y"))
    cluster.do(mount("/la/a/b/m"))
    assert not cluster.commit(made)


def test_a_mount_does_not_move_onto_a_topic(cluster: Cluster) -> None:
    cluster.do(mount("/la/m"), topic("/la/x"))
    refused(cluster, mv("/la/m", "/la/x"), MountShadows, "a topic")


# -- policies, etags, limits ---------------------------------------------------------------------


def test_read_only_at_either_end(cluster: Cluster) -> None:
    cluster.do(UpdateEntry(path=path("/la/z"), changes={"policies.read_only": True}))
    refused(cluster, mv("/la/a/t", "/la/z/t"), ReadOnly, "/la/z is read-only")
    refused(cluster, mv("/la/z", "/la/y"), ReadOnly, "read-only")
    cluster.do(UpdateEntry(path=path("/la/a"), changes={"policies.read_only": True}))
    refused(cluster, mv("/la/a/t", "/la/t"), ReadOnly, "/la/a is read-only")


def test_a_quota_counts_what_comes_in_and_not_what_is_there(cluster: Cluster) -> None:
    cluster.do(
        UpdateEntry(path=path("/la/z"), changes={"policies.max_topics": 1}),
        UpdateEntry(path=path("/la/a"), changes={"policies.max_topics": 2}),
    )
    refused(cluster, mv("/la/a", "/la/z/a"), QuotaExceeded, "/la/z allows 1 .*2 requested")
    cluster.do(mv("/la/a/b/u", "/la/a/u"))
    cluster.do(mv("/la/a/u", "/la/z/u"))
    refused(cluster, mv("/la/a/t", "/la/z/t"), QuotaExceeded, "/la/z allows 1")


def test_another_etag(cluster: Cluster) -> None:
    refused(cluster, mv("/la/a", "/la/y", etag="0-0"), EtagMismatch, "/la/a has changed")


@pytest.mark.parametrize(
    ("below", "room"), [(("x" * 200, "y" * 220), 600), (tuple("d" * 50), 20), ((), 0)]
)
def test_no_path_below_becomes_too_long(below: tuple[str, ...], room: int) -> None:
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), mkdir(str(Path(("la", "a", *below)))))
    cluster.do(topic(str(Path(("la", "a", *below, "t")))))
    far = ("w" * 200, "w" * 200, "w" * 200) if room == 600 else tuple("w" * room)
    if far:
        cluster.do(mkdir(str(Path(("la", *far)))))
        new = Path(("la", *far, "a"))
        refused(cluster, MoveEntry(path=path("/la/a"), new_path=new), InvalidPath, "64 segments or")
    cluster.do(mv("/la/a", "/la/bb"))


def test_a_move_checks_the_limits_of_every_path_below() -> None:
    """The one of fewer segments has more bytes; and the other way around."""
    cluster = Cluster()
    cluster.do(mkdir("/la/a"), mkdir(str(Path(("la", "a", *"d" * 40)))))
    cluster.do(mkdir(str(Path(("la", "a", "x" * 240, "y" * 240)))))
    cluster.do(topic(str(Path(("la", "a", "x" * 240, "y" * 240, "z" * 240)))))
    for above in (("w" * 150, "w" * 150), tuple("w" * 23)):
        cluster.do(mkdir(str(Path(("la", *above)))))
        new = Path(("la", *above, "a"))
        refused(cluster, MoveEntry(path=path("/la/a"), new_path=new), InvalidPath, "64 segments or")
    assert len(Path(("la", *"w" * 22, "a", *"d" * 40))) == 64
    cluster.do(mv("/la/a", str(Path(("la", *"w" * 22, "a")))))


@pytest.mark.parametrize(
    "meanwhile",
    [
        mv("/la/z", "/la/a/z"),
        mv("/la/z", "/la/y"),
        DeleteEntry(path=path("/la/z"), recursive=True),
        DeleteEntry(path=path("/la/a"), recursive=True),
        mv("/la/a", "/la/q"),
        mkdir("/la/z/a"),
    ],
)
def test_a_move_notices_what_happens_meanwhile(cluster: Cluster, meanwhile: object) -> None:
    made = cluster.plan(mv("/la/a", "/la/z/a"))
    cluster.do(meanwhile)  # type: ignore[arg-type]
    assert not cluster.commit(made)


def test_a_left_link_is_guarded_too(cluster: Cluster) -> None:
    made = cluster.plan(mv("/la/a/t", "/la/t", leave_link=True))
    cluster.do(mkdir("/la/a/t"))
    assert not cluster.commit(made)


def test_what_cannot_be_read_is_not_moved_over(cluster: Cluster) -> None:
    from directory.namespace.keys import entry_key

    key = entry_key(1, Kind.DIRECTORY, "y")
    assert cluster.rows.commit((), (Put(key, b"\xff"),))
    cluster.snapshot = cluster.loaded()
    refused(cluster, mv("/la/a", "/la/y"), AlreadyExists, "cannot be read")
