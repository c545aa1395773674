"""Hidden is absent, byte for byte: all methods of the contract, of each kind of entry, to each kind
of caller, with tokens, etags and ids that are old or made up.

Requests are made of the contract's descriptors: each field that a request has is given each of its
values in turn. A method or a field that is added later has no row here and fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from kdir.v1 import access_pb2, directory_pb2, entry_pb2, federation_pb2, policies_pb2, watch_pb2

from directory.api.entry_reads import _query
from directory.api.page_tokens import PageToken
from directory.federation import inheritance
from directory.federation.federation_state import unix_ms
from resolver.errors import AlreadyExists, KdirError, PermissionDenied
from resolver.path import Path as EntryPath
from tests.unit.access.conftest import ADMIN, SERVICES, House, grants, topic

Make = Callable[..., House]
METHODS: Final[Mapping[str, MethodDescriptor]] = {
    f"{service.descriptor.name}/{method.name}": method
    for service in SERVICES
    for method in service.descriptor.methods
}
ABSENT: Final = "zzqz"
HIDDEN: Final = ("hidt", "hidd", "hidl", "hidm", "hidc", "hidx", "hidv")
"""A topic, a directory, a link, a mount, a closed directory, one that was removed, one that was
moved away.
"""
OWNER: Final = entry_pb2.Entry(policies=policies_pb2.Policies(owner="x"))


class Known(NamedTuple):
    """Tokens and ids that a caller may have from before, or make up."""

    before: str
    """A token of before anything was there."""
    now: str
    incarnation: str
    revision: int
    etag: str
    """Of the entry that is hidden."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Path and tokens that a request is made of."""

    path: str
    known: Known

    @property
    def name(self) -> str:
        """Name in ``/la/p``; the cluster of the mount there is called after it."""
        return self.path.removeprefix("/la/p/").partition("/")[0]

    def page_tokens(self, method: str) -> list[str]:
        """Returns page tokens of such a request, as the server makes them: none is signed."""
        what, query, last = {
            "DirectoryService/ListEntries": ("list", self._list_query(), "t/a"),
            "ScanService/ScanTopics": ("scan", f"{self.path} 0/1", "p/a"),
            "WatchService/ListChanges": ("changes", self.path, ""),
        }[method]
        known = self.known
        return [
            str(PageToken(what, query, incarnation, revision, last))
            for incarnation in (known.incarnation, "another")
            for revision in (1, known.revision, known.revision + 9)
        ]

    def _list_query(self) -> str:
        return _query(directory_pb2.ListEntriesRequest(), EntryPath.parse(self.path))


Values = Callable[[str, Asked], list[Any]]


def fixed(*values: Any) -> Values:
    return lambda _, __: list(values)


TOKENS: Final[Values] = lambda _, asked: ["", asked.known.now, asked.known.before, "AAAA"]  # noqa: E731
KINDS: Final = fixed(0, 1, 2, 3, 4)
FIELDS: Final[Mapping[str, Values]] = {
    "adopt_existing": fixed(False, True),
    "after_token": lambda _, asked: [asked.known.before],
    "allow_lock_out": fixed(False, True),
    "armed": fixed(False, True),
    "aspect": fixed("configs", "acls", "create", "none"),
    "checkpoint_seconds": fixed(1),
    "cluster": lambda _, asked: ["", "la", "kc-other", f"kc-{asked.name}"],
    "confirm_links": fixed(False, True),
    "directory": fixed(False, True),
    "entry": lambda method, _: (
        [OWNER]
        if method.endswith("UpdateEntry")
        else [
            entry_pb2.Entry(directory={}),
            entry_pb2.Entry(topic={}),
            entry_pb2.Entry(topic={"physical_name": "p.q"}),
            entry_pb2.Entry(link={"targets": ["/la/p/t"]}),
            entry_pb2.Entry(mount={"cluster_id": "kc-new"}),
        ]
    ),
    "etag": lambda _, asked: ["", asked.known.etag, "1-1"],
    "explain": fixed(False, True),
    "grants": fixed(grants("mallory", "read"), grants("carol", "-all")),
    "heartbeat": fixed(None),
    "hello": lambda _, asked: [federation_pb2.Hello(cluster_id="kc-hidm", mount=asked.path)],
    "host": fixed("", "10.0.0.1"),
    "include_system": fixed(False, True),
    "inherited_from": fixed("", "/", "/la/p"),
    "keep_inherited": fixed(True),
    "kind": KINDS,
    "kinds": fixed([], [1], [2, 3]),
    "leave_link": fixed(False, True),
    "level": fixed(0, 1),
    "make_parents": fixed(False, True),
    "mounts_below": fixed(None),
    "name_glob": fixed("", "*", "hid*"),
    "new_path": lambda _, asked: [
        "/la/p/new",
        "/la/elsewhere/new",
        "/nowhere/new",
        f"{asked.path}/new",
    ],
    "no_follow": fixed(False, True),
    "one_revision": fixed(False, True),
    "operation": fixed(7, 2, 6, 5),
    "page_size": fixed(0, 1),
    "page_token": lambda method, asked: ["", *asked.page_tokens(method)],
    "path": lambda _, asked: [asked.path],
    "paths": lambda _, asked: [[asked.path], ["/la/p", asked.path]],
    "physical_name": lambda _, asked: [".".join(asked.path.split("/")[2:])],
    "plan_hash": fixed("abc"),
    "prefer": KINDS,
    "principal": fixed("SELF", "User:carol", "User:*"),
    "recursive": fixed(False, True),
    "remap_adopted": fixed(False, True),
    "request_id": fixed("", "an-id-of-admin"),
    "resource_type": fixed(0, 2, 3, 4),
    "resource_name": fixed("", "g"),
    "revision": fixed(0, 1),
    "rules": fixed([]),
    "shard": fixed(0),
    "shard_count": fixed(0, 1),
    "skip_kafka": fixed(True, False),
    "stop_reason": fixed("x"),
    "takeover": fixed(False, True),
    "token": TOKENS,
    "unarmed": fixed(False, True),
    "update_mask": lambda _, __: [
        FieldMask(paths=[one])
        for one in ("policies.owner", "directory.closed", "policies.topic_config.x.y", "no.such")
    ],
    "validate_only": fixed(True, False),
    "wait_until_active": fixed(False, True),
    "what_if": fixed(policies_pb2.Policies(owner="z")),
    "what_if_mask": fixed(FieldMask(), FieldMask(paths=["policies.owner"])),
}
"""What each field of a request is given, the first of it in all requests but those about it."""
NAMES_NO_ENTRY: Final = {
    "AdminService/GetStatus",
    "AdminService/AdoptTopics",
    "AdminService/Acknowledge",
    "AdminService/FinalizeFeatures",
    "AdminService/ResyncChangeLog",
    "AdminService/SkipChangeLog",
    "AdminService/EndChangeLog",
    "WatchService/GetChangeLog",
    "AdminService/DetachParent",
    "AdminService/AttachParent",
    "AdminService/Verify",
    "AdminService/Backup",
    "FederationService/ListMounts",
}


def requests_of(method: str, asked: Asked) -> Iterator[Message]:
    """Yields one request with the first value of each field, and one for each other
    value of each.
    """
    request_class = GetMessageClass(METHODS[method].input_type)
    fields = {
        field.name: FIELDS[field.name](method, asked) for field in METHODS[method].input_type.fields
    }
    base = {name: values[0] for name, values in fields.items()}
    yield request_class(**base)
    for name, values in fields.items():
        for value in values[1:]:
            yield request_class(**{**base, name: value})


def test_each_method_and_each_field_of_a_request_has_a_row() -> None:
    asked = Asked("/la/p/x", Known("", "", "", 0, ""))
    fields = {field.name for one in METHODS.values() for field in one.input_type.fields}
    assert set(FIELDS) == fields, "what is such a field given?"
    for method, descriptor in METHODS.items():
        if method not in NAMES_NO_ENTRY:
            made = [str(request) for request in requests_of(method, asked)]
            by_name = "p.x" if method.endswith("Locate") else "/la/p/x"
            assert by_name in made[0], f"{method}: which field names the entry?"
        else:
            assert not {"path", "paths", "hello"} & {
                one.name for one in descriptor.input_type.fields
            }
    for service in SERVICES:
        methods = {one.name for one in service.descriptor.methods}
        # Anything else of a field's type is given a value here, or nothing would be compared.
        assert methods == {
            one.partition("/")[2] for one in METHODS if service.descriptor.name in one
        }


# -- the cluster ---


def inherit(la: House) -> None:
    """Adds an inherited allow that no parent has confirmed for too long."""
    message = federation_pb2.Inherited(revision=1, incarnation="i")
    message.levels.add(path="/", grants=grants("expired", "all", host="*"))
    la.put(*inheritance.inherited_writes(la.cluster.replica.snapshot, message, unix_ms()))


@pytest.fixture
def la(house: Make) -> House:
    made = house(
        parent=["127.0.0.1:1"],
        limits={"inherited_grants_max_age_seconds": 60.0},
        kafka={"bootstrap": ["127.0.0.1:1"]},
    )
    made.cluster.unconfirmed_seconds = lambda: 1000.0  # type: ignore[method-assign]
    inherit(made)
    made.mkdir("/la/p/vis")
    made.mkdir("/la/elsewhere")
    topic(made, "/la/p/t")
    topic(made, "/la/p/vis/t")
    made.grant("sibling", "read", "/la/p/vis")
    made.grant("creator", "create", "/la/p")
    return made


def hide(la: House) -> dict[str, str]:
    """Makes what is hidden, by name with the etag that it had; ``denied`` may do all else."""
    for name in ("hidd/in", "hidx/in", "hidv"):
        la.mkdir(f"/la/p/{name}")
    la.mkdir("/la/p/hidc", closed=True)
    la.mkdir("/la/p/hidc/in")
    topic(la, "/la/p/hidt")
    topic(la, "/la/p/hidd/in/x")
    la.link("/la/p/hidl", "/la/elsewhere")
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-hidm"))
    request = directory_pb2.CreateEntryRequest(
        path="/la/p/hidm", entry=entry, request_id="an-id-of-admin"
    )
    la.ask(ADMIN, "CreateEntry", request)
    etags = {}
    for name in HIDDEN:
        path = f"/la/p/{name}"
        kind = {"hidt": 2, "hidl": 3, "hidm": 4}.get(name, 1)
        got = directory_pb2.GetEntryRequest(path=path, kind=kind)  # type: ignore[arg-type]
        etags[name] = la.ask(ADMIN, "GetEntry", got).entry.etag
        denied = [one for who in ("denied", "reader", "blind") for one in grants(who, "-all")]
        if name == "hidm":
            # Whom no grant denies a mount is sent on to its cluster, which decides (decision 0032).
            denied += grants("User:*", "-describe")
        denial = access_pb2.AddGrantsRequest(path=path, kind=kind, grants=denied)  # type: ignore[arg-type]
        la.ask(ADMIN, "AddGrants", denial)
    la.ask(
        ADMIN, "DeleteEntry", directory_pb2.DeleteEntryRequest(path="/la/p/hidx", recursive=True)
    )
    move = directory_pb2.MoveEntryRequest(path="/la/p/hidv", new_path="/la/elsewhere/hidv")
    la.ask(ADMIN, "MoveEntry", move)
    la.grant("denied", "all", "/la/p")
    la.grant("reader", "describe", "/la/p")
    la.grant("blind", "create,alter-configs,describe-configs", "/la/p")
    return etags


CALLERS: Final = ("", "mallory", "sibling", "creator", "denied", "reader", "blind", "expired")
"""Anonymous; without rights; with rights beside it, on the directory only, on all but it; with
DESCRIBE only on all but it; with all but DESCRIBE; with an inherited allow that ended.
"""
MAKERS: Final = ("creator", "denied", "blind")
"""Of whom CREATE is allowed on the directory."""


# -- asking ---

_NEW_IDS: Final = re.compile(r'entry_id: \d+|etag: "[^"]*"')
"""Drawn at random for what would be made."""
_RANDOM: Final = re.compile(r'(?:token|incarnation|cluster_id): "[^"]*"')
"""Fields whose random letters now and then make a name."""


def reported(la: House, who: str, method: str, request: Message, name: str) -> str:
    """Returns all that a caller gets, but for the name."""
    one = METHODS[method]
    for field in one.input_type.fields:
        if field.name == "principal" and getattr(request, field.name) == "SELF":
            setattr(request, field.name, who or "User:ANONYMOUS")
    la.cluster.draining = method.endswith("/Watch")  # it ends once what is past was sent
    try:
        answer = la.ask(who, one.name, request)
        received = "".join(map(str, islice(answer, 50))) if one.server_streaming else str(answer)
    except KdirError as error:
        received = f"{type(error).__name__} {error.message} {sorted(error.metadata.items())}"
    finally:
        la.cluster.draining = False
    if method.endswith("CreateEntry"):
        received = _NEW_IDS.sub("ID", received)
    return received.replace(name, "NAME")


def both(
    la: House, who: str, method: str, request: Message, hidden: str, other: Message
) -> tuple[str, str]:
    """Returns what is told of the hidden and of the absent, at the same revision of the store,
    which goes on by itself: a server registers, a reaper works.
    """
    while True:
        begin = la.cluster.replica.snapshot.revision
        found = (
            reported(la, who, method, request, hidden),
            reported(la, who, method, other, ABSENT),
        )
        if found[0] == found[1] or la.cluster.replica.snapshot.revision == begin:
            return found


def changes_by(la: House, who: str) -> list[watch_pb2.ChangeEvent]:
    """Returns the changes that a caller made; the reaper's have nobody's name."""
    asked = watch_pb2.ListChangesRequest(path="/la")
    events = la.ask(ADMIN, "ListChanges", asked).events
    return [one for one in events if who and one.principal == who]


def takes_the_place(method: str, request: Any, path: str) -> bool:
    """Returns what would be made where something is, by who may: that the name is taken cannot be
    hidden. See ``test_what_is_taken_by_something_hidden_is_taken_and_no_more``.
    """
    if method.endswith("CreateEntry"):
        return bool(request.path == path or request.make_parents)
    return method.endswith("MoveEntry") and bool(request.new_path == path)


@pytest.mark.parametrize("who", CALLERS)
def test_no_method_distinguishes_what_is_hidden_from_what_is_not_there(la: House, who: str) -> None:
    before = la.cluster.token_of(la.cluster.replica.snapshot)
    etags = hide(la)
    principal = f"User:{who}" if who else ""
    compared = 0
    for hidden in HIDDEN:
        snapshot = la.cluster.replica.snapshot
        known = Known(
            before,
            la.cluster.token_of(snapshot),
            snapshot.incarnation,
            snapshot.revision,
            etags[hidden],
        )
        for method in METHODS:
            if method in NAMES_NO_ENTRY:
                continue
            for below in ("", "/q"):
                pairs = zip(
                    requests_of(method, Asked(f"/la/p/{hidden}{below}", known)),
                    requests_of(method, Asked(f"/la/p/{ABSENT}{below}", known)),
                    strict=True,
                )
                for request, other in pairs:
                    if who in MAKERS and takes_the_place(method, request, f"/la/p/{hidden}"):
                        continue
                    compared += 1
                    of_hidden, of_absent = both(la, principal, method, request, hidden, other)
                    assert of_hidden == of_absent, (method, request)
    assert compared > 2_000
    assert changes_by(la, principal) == []


@pytest.mark.parametrize("who", CALLERS)
def test_no_method_names_what_is_hidden_to_who_asks_for_what_is_beside_it(
    la: House, who: str
) -> None:
    before = la.cluster.token_of(la.cluster.replica.snapshot)
    hide(la)
    snapshot = la.cluster.replica.snapshot
    now = la.cluster.token_of(snapshot)
    known = Known(before, now, snapshot.incarnation, snapshot.revision, "")
    principal = f"User:{who}" if who else ""
    for method, descriptor in METHODS.items():
        for path in ("/la/p", "/la", "/la/p/vis", "/la/elsewhere"):
            for request in requests_of(method, Asked(path, known)):
                names = {field.name for field in descriptor.input_type.fields}
                if "validate_only" in names:
                    request.validate_only = True  # type: ignore[attr-defined]
                found = reported(la, principal, method, request, "hid*")
                read = _RANDOM.sub("", found)
                if method.endswith("/Link"):
                    read = read.replace("kc-hidm", "")  # which the request itself names
                assert "hid" not in read, (method, request, found)


@pytest.mark.parametrize("who", MAKERS)
def test_what_is_taken_by_something_hidden_is_taken_and_no_more(la: House, who: str) -> None:
    hide(la)
    reported_of: set[str] = set()

    def make(path: str, entry: entry_pb2.Entry, *, parents: bool) -> bool:
        request = directory_pb2.CreateEntryRequest(path=path, entry=entry, make_parents=parents)
        try:
            la.ask(f"User:{who}", "CreateEntry", request)
        except (AlreadyExists, PermissionDenied) as error:
            reported_of.add(f"{error.message} {error.metadata}".replace(hidden, "NAME"))
            return False
        return True

    for hidden in ("hidt", "hidd", "hidl", "hidm", "hidc"):
        path = f"/la/p/{hidden}"
        directory = entry_pb2.Entry(directory={})
        made = [
            (path, directory, False),
            (path, entry_pb2.Entry(link={"targets": ["/la/p/t"]}), False),
            (path, directory, True),
            (f"{path}/q", directory, True),
            (f"{path}/in/q", directory, True),
        ]
        for at, entry, parents in made:
            if make(at, entry, parents=parents):
                # A topic and a directory may have one name.
                assert hidden == "hidt"
                kind = 1 if entry.HasField("directory") else 3
                delete = directory_pb2.DeleteEntryRequest(path=path, kind=kind, recursive=kind == 1)  # type: ignore[arg-type]
                la.ask(ADMIN, "DeleteEntry", delete)
    assert len(reported_of) == 1, reported_of
