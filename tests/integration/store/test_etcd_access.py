"""Stores in an etcd that lets in only some: TLS, users, rights, and prefixes that keep apart."""

import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest

from deploy.local.etcd import Certificates, EtcdCluster, EtcdMember, installed
from directory.store.addresses import find_identity, open_store
from directory.store.base import (
    Committed,
    HistoryCompacted,
    IncompatibleStore,
    Put,
    StoreUnreachable,
)
from directory.store.etcd import open_or_create
from directory.store.etcd.call_errors import EtcdRefused
from directory.store.etcd.connection import EtcdConnection
from directory.store.etcd.etcd3_stubs import etcdrpc
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.key_layout import Layout
from directory.store.etcd.store import EtcdStore
from tests.conformance.store.reading import everything, following, put, until
from tests.conftest import SharedEtcd
from tests.support.federation import eventually

PASSWORD = "pa/ss:wörd"
TOKEN_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Guarded:
    """An etcd with TLS and users: ``root``, and ``kdir`` who may use ``/la/`` only."""

    cluster: EtcdCluster
    certificates: Certificates
    password_file: Path

    @property
    def tls(self) -> str:
        files = self.certificates
        return f"ca={files.ca}&cert={files.cert('someone')}&key={files.key('someone')}"

    def address(self, user: str = "kdir@", prefix: str = "/la", more: str = "") -> str:
        hosts = ",".join(self.cluster.endpoints)
        password = f"&password_file={self.password_file}" if user == "kdir@" else ""
        return f"etcd://{user}{hosts}{prefix}?{self.tls}{password}{more}"

    @contextmanager
    def as_root(self) -> Iterator[Any]:
        """Yields the stub of etcd's users and roles, and what makes a call root's."""
        files = self.certificates
        credentials = grpc.ssl_channel_credentials(
            files.ca.read_bytes(),
            files.key("someone").read_bytes(),
            files.cert("someone").read_bytes(),
        )
        with grpc.secure_channel(self.cluster.endpoints[0], credentials) as channel:
            auth = etcdrpc.AuthStub(channel)
            yield lambda method, **fields: _call(auth, method, fields)


def _call(auth: Any, method: str, fields: dict[str, Any]) -> Any:
    metadata: tuple[tuple[str, str], ...] = ()
    login = etcdrpc.AuthenticateRequest(name="root", password="root")
    with suppress(grpc.RpcError):  # not enabled yet
        metadata = (("token", auth.Authenticate(login, timeout=10).token),)
    request = getattr(etcdrpc, f"Auth{method.removeprefix('Auth')}Request")(**fields)
    return getattr(auth, method)(request, timeout=10, metadata=metadata)


def _permission(prefix: bytes) -> Any:
    return {"permType": 2, "key": prefix, "range_end": prefix[:-1] + b"0"}  # READWRITE


@pytest.fixture(scope="module")
def guarded(
    etcd_clusters: Callable[..., EtcdCluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("access")
    certificates = Certificates.make(folder, "server", "someone")
    flags = [f"--auth-token-ttl={TOKEN_SECONDS}"]
    with etcd_clusters(certificates=certificates, flags=flags) as cluster:
        guarded = Guarded(cluster, certificates, folder / "password")
        guarded.password_file.write_text(f"{PASSWORD}\n")
        with guarded.as_root() as call:
            for user, password in (("root", "root"), ("kdir", PASSWORD), ("nobody", "nobody")):
                call("UserAdd", name=user, password=password)
            for role in ("root", "la"):
                call("RoleAdd", name=role)
            call("RoleGrantPermission", name="la", perm=_permission(b"/la/"))
            call("UserGrantRole", user="root", role="root")
            call("UserGrantRole", user="kdir", role="la")
            call("AuthEnable")
        yield guarded


@contextmanager
def opened(address: str, cluster: str = "la") -> Iterator[EtcdStore]:
    with closing(EtcdStore.open(address, cluster)) as store:
        yield store


def test_a_store_over_tls_with_user_and_password(guarded: Guarded) -> None:
    with opened(guarded.address()) as store, following(store) as watch:
        done = put(store, (b"k", b"v"))
        assert until(watch, done.revision)[-1].writes == (Put(b"k", b"v"),)
        leadership = store.elect("publisher", "one")
        assert leadership is not None
        leadership.release()
        assert everything(store, [b"k"]) == {b"k": b"v"}


def test_the_password_is_shown_nowhere(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "wr0ng%2Fsecret"
    with pytest.raises(
        IncompatibleStore, match="does not know user kdir with this password"
    ) as refused:
        open_store(guarded.address(f"kdir:{wrong}@"), "la")
    hosts = ",".join(guarded.cluster.endpoints)
    with opened(guarded.address()) as store:
        shown = [store.describe(), repr(store.connection.address), str(refused.value), caplog.text]
        assert shown[0] == f"etcd://{hosts}/la"
    for text in shown:
        assert "wr0ng" not in text
        assert PASSWORD not in text


def test_who_is_missing_or_may_not_gets_that_error(guarded: Guarded) -> None:
    with pytest.raises(
        IncompatibleStore, match="not let the user that its certificate names do this"
    ):
        open_store(guarded.address(""), "la")
    with pytest.raises(
        IncompatibleStore, match="does not let user nobody do this: its role needs readwrite"
    ):
        open_store(guarded.address("nobody:nobody@"), "la")
    with pytest.raises(IncompatibleStore, match="does not let user kdir do this"):
        open_store(guarded.address(prefix="/la2"), "la2")
    with pytest.raises(IncompatibleStore, match="does not let user kdir do this"):
        find_identity(guarded.address(prefix="/ny"))


def test_without_the_right_certificates_there_is_no_connection(
    guarded: Guarded, tmp_path: Path
) -> None:
    other = Certificates.make(tmp_path, "someone")
    hosts = ",".join(guarded.cluster.endpoints)
    for query in ("", f"?ca={other.ca}", f"?ca={guarded.certificates.ca}"):
        address = EtcdAddress.parse(f"etcd://{hosts}/la{query}")
        connection = EtcdConnection(address)
        with pytest.raises(StoreUnreachable, match="no member answered"):
            connection.range(etcdrpc.RangeRequest(key=b"/la/k"), 2)
        connection.close()
    with pytest.raises(IncompatibleStore, match=r"ca: cannot read /nowhere/ca.pem: No such file"):
        open_store(f"etcd://{hosts}/la?ca=/nowhere/ca.pem", "la")


def test_S15_a_token_that_ran_out_is_replaced(guarded: Guarded) -> None:
    with opened(guarded.address()) as store, following(store) as watch:
        before = put(store, (b"k", b"1"))
        until(watch, before.revision)
        token = store.connection.token
        assert token
        # Nobody uses it now, so etcd forgets it.
        eventually(lambda: _is_forgotten(guarded, token))
        done = put(store, (b"k", b"2"))
        assert store.connection.token != token
        assert until(watch, done.revision)[-1].writes == (Put(b"k", b"2"),)
        assert everything(store, [b"k"]) == {b"k": b"2"}


def _is_forgotten(guarded: Guarded, token: str) -> bool:
    # Asking with it would keep it: so long it must be left alone.
    time.sleep(TOKEN_SECONDS + 1.5)
    with ExitStack() as stack:
        address = EtcdAddress.parse(guarded.address())
        connection = EtcdConnection(address)
        stack.callback(connection.close)
        channel = stack.enter_context(connection.dial(0))
        try:
            etcdrpc.KVStub(channel).Range(
                etcdrpc.RangeRequest(key=b"/la/k"), timeout=5, metadata=(("token", token),)
            )
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAUTHENTICATED
        return False


def test_S15_a_password_that_was_changed_is_read_from_its_file(guarded: Guarded) -> None:
    with opened(guarded.address()) as store, guarded.as_root() as call:
        put(store, (b"k", b"1"))
        try:
            call("UserChangePassword", name="kdir", password="another")
            guarded.password_file.write_text("another")
            put(store, (b"k", b"2"))
        finally:
            call("UserChangePassword", name="kdir", password=PASSWORD)
            guarded.password_file.write_text(PASSWORD)
        put(store, (b"k", b"3"))


def test_S14_a_right_that_is_taken_away_is_an_error_and_comes_back(guarded: Guarded) -> None:
    with opened(guarded.address()) as store, guarded.as_root() as call, following(store) as watch:
        before = put(store, (b"k", b"1"))
        until(watch, before.revision)
        permission = _permission(b"/la/")
        call(
            "RoleRevokePermission",
            role="la",
            key=permission["key"],
            range_end=permission["range_end"],
        )
        try:
            for attempt in (
                lambda: put(store, (b"k", b"2")),
                lambda: store.read(b"k"),
                lambda: everything(store),
                store.refresh_identity,
            ):
                with pytest.raises(StoreUnreachable, match="does not let user kdir do this"):
                    attempt()
            eventually(lambda: _is_away(watch))
        finally:
            call("RoleGrantPermission", name="la", perm=permission)
        done = put(store, (b"k", b"3"))
        assert isinstance(done, Committed)
        eventually(lambda: _brings(watch, b"3"))


def _is_away(watch: Any) -> bool:
    try:
        watch.next(0.1)
    except StoreUnreachable:
        return True
    return False


def _brings(watch: Any, value: bytes) -> bool:
    try:
        return any(Put(b"k", value) in change.writes for change in watch.next(0.1))
    except StoreUnreachable:
        return False


# -- prefixes --------------------------------------------------------------------------------


def test_clusters_of_one_etcd_keep_apart(etcd_cluster: SharedEtcd) -> None:
    base = etcd_cluster.address()
    with opened(f"{base}/la") as la, opened(f"{base}/la2", "la2") as la2:
        put(la, (b"k", b"la"), (b"\xff\xff", b"la"))
        put(la2, (b"k", b"la2"))
        assert la.identity.store_id != la2.identity.store_id
        assert everything(la) == {b"k": b"la", b"\xff\xff": b"la"}
        assert everything(la2) == {b"k": b"la2"}
        assert la.elect("publisher", "x") is not None
        assert la2.elect("publisher", "x") is not None
        loading = la2.load()
        with following(la2, loading.revision, loading.commit_id) as watch:
            for number in range(20):
                put(la, (b"k", b"%d" % number))
            done = put(la2, (b"k", b"late"))
            assert [change.revision for change in until(watch, done.revision)] == [done.revision]
        la.seal("being looked at")
        put(la2, (b"k", b"open"))


def test_a_prefix_in_use_or_inside_anothers_is_refused(etcd_cluster: SharedEtcd) -> None:
    base = etcd_cluster.address()
    with opened(f"{base}/la"):
        with pytest.raises(
            IncompatibleStore, match=r"/la is another cluster's store; a prefix must"
        ):
            open_store(f"{base}/la/tracking", "la-tracking")
        with pytest.raises(IncompatibleStore, match=r"the prefix is in use: it holds .*/la/"):
            open_store(base, "x")
        with pytest.raises(IncompatibleStore, match=r"is the store of cluster la .*, not of ny"):
            open_store(f"{base}/la", "ny")
        assert find_identity(f"{base}/la") is not None
        assert find_identity(f"{base}/la/tracking") is None


def test_a_store_of_a_newer_kdir_is_named_in_the_error(etcd_cluster: SharedEtcd) -> None:
    address = etcd_cluster.address()
    with opened(address) as store, store.connection.dial(0) as channel:
        newer = b'{"schema_version": 99}'
        key = Layout(store.connection.address.root).identity
        etcdrpc.KVStub(channel).Put(etcdrpc.PutRequest(key=key, value=newer), timeout=10)
    for ask in (find_identity, lambda address: open_store(address, "la")):
        with pytest.raises(IncompatibleStore, match=f"^{address}: has schema version 99"):
            ask(address)


def test_a_store_that_was_removed_is_not_made_again_under_its_servers(
    etcd_cluster: SharedEtcd,
) -> None:
    address = etcd_cluster.address()
    with opened(address) as store, following(store) as watch:
        done = put(store, (b"k", b"v"))
        until(watch, done.revision)
        root = EtcdAddress.parse(address).root
        with store.connection.dial(0) as channel:
            etcdrpc.KVStub(channel).DeleteRange(
                etcdrpc.DeleteRangeRequest(key=root, range_end=root[:-1] + b"0"), timeout=10
            )
        with pytest.raises(HistoryCompacted):
            watch.next(30)
        with pytest.raises(IncompatibleStore, match="there is no store any more"):
            store.refresh_identity()
        with pytest.raises(StoreUnreachable, match="there is no store any more"):
            put(store, (b"k", b"w"))
        assert find_identity(address) is None


@pytest.fixture
def with_learner(
    etcd_clusters: Callable[..., EtcdCluster], tmp_path: Path
) -> Iterator[tuple[EtcdMember, EtcdCluster]]:
    """Yields a learner, which takes reads from its own data and nothing else, and its cluster of
    one member, with the users ``root`` and ``kdir``, who may use ``/la/``.
    """
    learner = EtcdMember("learner", tmp_path / "learner")
    with etcd_clusters(members=1) as cluster, ExitStack() as stack:
        voter = cluster.members[0]
        body = json.dumps({"peerURLs": [learner.peer_url], "isLearner": True}).encode()
        with urlopen(f"http://{voter.endpoint}/v3/cluster/member/add", body, timeout=10):
            pass
        peers = f"--initial-cluster={voter.peer},{learner.peer}"
        learner.join([installed(), peers, "--initial-cluster-state=existing"])
        stack.callback(learner.kill)
        with grpc.insecure_channel(voter.endpoint) as channel:
            auth = etcdrpc.AuthStub(channel)
            for user in ("root", "kdir"):
                _call(auth, "UserAdd", {"name": user, "password": user})
            for role in ("root", "la"):
                _call(auth, "RoleAdd", {"name": role})
            _call(auth, "RoleGrantPermission", {"name": "la", "perm": _permission(b"/la/")})
            _call(auth, "UserGrantRole", {"user": "root", "role": "root"})
            _call(auth, "UserGrantRole", {"user": "kdir", "role": "la"})
            _call(auth, "AuthEnable", {})
        at_learner = EtcdConnection(EtcdAddress.parse(f"etcd://{learner.endpoint}/la"))
        with closing(at_learner):
            eventually(lambda: wants_a_user(at_learner))
        yield learner, cluster


def wants_a_user(connection: EtcdConnection) -> bool:
    """True if a member has the users of its cluster by now."""
    with suppress(StoreUnreachable):
        try:
            connection.cluster_id_at(0, 1)
        except EtcdRefused:
            return True
    return False


def test_a_store_is_created_and_opened_where_the_address_names_a_learner(
    with_learner: tuple[EtcdMember, EtcdCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lets nobody log in; a call that begins there goes on to another member."""
    learner, cluster = with_learner
    monkeypatch.setattr(open_or_create, "_MEMBER_SECONDS", 20.0)
    for number in (0, 1):
        monkeypatch.setattr(random, "randrange", lambda _, number=number: number)
        address = f"etcd://kdir:kdir@{learner.endpoint},{cluster.endpoints[0]}/la"
        assert (find_identity(address) is None) == (number == 0)
        with opened(address) as store, following(store) as watch:
            done = put(store, (b"k", b"%d" % number))
            assert until(watch, done.revision)[-1].writes == (Put(b"k", b"%d" % number),)
            assert everything(store, [b"k"]) == {b"k": b"%d" % number}
