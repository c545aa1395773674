"""Addresses of stores in etcd: each part checked, and no password shown."""

from pathlib import Path

import pytest

from directory.store.addresses import describe_address, is_same_place
from directory.store.base import IncompatibleStore
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.key_layout import Layout
from resolver.redaction import redacted

SECRET = "s3cret"


def test_all_parts() -> None:
    address = EtcdAddress.parse(
        f"etcd://kd%40ir:{SECRET}%2F@a:2379,b.example:12379,[::1]:2379,c/kdir/la-tracking"
        "?ca=/etc/ca.pem&cert=/etc/kdir.pem&key=/etc/my%20key.pem"
    )
    assert address.endpoints == ("a:2379", "b.example:12379", "[::1]:2379", "c:2379")
    assert address.prefix == "/kdir/la-tracking"
    assert address.root == b"/kdir/la-tracking/"
    assert address.user == "kd@ir"
    assert address.password() == f"{SECRET}/"
    assert (address.ca, address.cert, address.key) == (
        "/etc/ca.pem",
        "/etc/kdir.pem",
        "/etc/my key.pem",
    )


def test_blanks_in_a_user_and_a_password_are_percent_encoded() -> None:
    address = EtcdAddress.parse(f"etcd://my%20la:%20{SECRET}%09@a/la")
    assert (address.user, address.password()) == ("my la", f" {SECRET}\t")


def test_what_is_shown_holds_neither_user_nor_password_nor_files(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    for text in (
        f"etcd://kdir:{SECRET}@a:2379/la?ca=/ca.pem",
        f"etcd://kdir@a:2379/la?password_file={file}",
    ):
        address = EtcdAddress.parse(text)
        assert address.password() == SECRET
        assert str(address) == describe_address(text) == "etcd://a:2379/la"
        assert SECRET not in repr(address)


def test_a_password_file_is_read_again_each_time(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("old")
    address = EtcdAddress.parse(f"etcd://kdir@a:2379/la?password_file={file}")
    assert address.password() == "old"
    file.write_text("new\r\n")
    assert address.password() == "new"
    file.unlink()
    with pytest.raises(IncompatibleStore, match=r"password_file: cannot read .*No such file"):
        address.password()


def test_a_password_file_that_is_no_text_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(SECRET.encode("utf-16"))
    address = EtcdAddress.parse(f"etcd://kdir@a:2379/la?password_file={file}")
    with pytest.raises(IncompatibleStore, match=f"password_file: {file} is not UTF-8") as refused:
        address.password()
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("etcd://a:2379", "prefix: found ''; expected a prefix of the cluster's own, such as /la"),
        ("etcd://a:2379/", "prefix: found '/'; expected a prefix of the cluster's own"),
        ("etcd://a:2379/la/", "prefix: found '/la/'"),
        ("etcd://a:2379/la//b", "prefix: found '/la//b'"),
        ("etcd://a:2379/la/../b", "prefix: found '/la/../b'"),
        ("etcd://a:2379/l a", "prefix: found '/l a'"),
        (f"etcd://a:2379/{'x' * 200}", "prefix: .* at most 200 bytes"),
        ("etcd:///la", "endpoint: found ''; expected HOST:PORT"),
        ("etcd://a:2379,/la", "endpoint: found ''; expected HOST:PORT"),
        ("etcd://a:port/la", "endpoint: found 'a:port'; expected HOST:PORT"),
        ("etcd://a:0/la", "endpoint: found 'a:0'; expected a port from 1 to 65535"),
        ("etcd://a:70000/la", "endpoint: found 'a:70000'; expected a port from 1 to 65535"),
        ("etcd://a b:2379/la", "endpoint: found 'a b:2379'"),
        ("etcd://a:1,a:1/la", "endpoints: found 'a:1,a:1'; expected each member once"),
        ("etcd://a:1/la?passwordfile=/x", "'passwordfile'; the nearest known one is 'password_f"),
        ("etcd://a:1/la?ca=", "ca: found ''; expected ca=FILE"),
        ("etcd://a:1/la?ca=/a&ca=/b", "ca: found '/b'; expected ca=FILE, once"),
        ("etcd://a:1/la?cert=/c", "cert: found '/c'; expected cert and key together"),
        ("etcd://a:1/la?key=/k", "key: found '/k'; expected cert and key together"),
        ("etcd://a:1/la?cert=/c&key=/k", "cert: found '/c'; expected ca=FILE with it"),
        ("etcd://kdir@a:1/la", r"user: found 'kdir'; expected a user with \?password_file=FILE"),
        (
            "etcd://a:1/la?password_file=/p",
            "password_file: found '/p'; expected USER@ before the hosts",
        ),
        ("etcd://my la:pw@a/la", "a blank is in the user or the password; there it is written %20"),
        ("etcd://la:pw\t@a/la", r"a blank is in the user or the password; .*\(a tab %09\)"),
        ("etcd://:pw@a/la", "a password without a user; expected USER:PASSWORD@"),
        ("sqlite:///x", r"an address: found 'sqlite://…'; expected etcd://HOST"),
    ],
)
def test_each_mistake_is_a_sentence_that_says_what_would_be_right(
    text: str, arguments: str
) -> None:
    with pytest.raises(IncompatibleStore, match=f"store etcd://…: .*{arguments}") as refused:
        EtcdAddress.parse(text)
    assert redacted(str(refused.value)) == str(refused.value)
    assert not str(refused.value).endswith(",")


@pytest.mark.parametrize(
    "text",
    [
        f"etcd://:{SECRET}@a:1/la",
        f"etcd://kdir:{SECRET}/more@a:1/la",
        f"etcd://kdir:a?{SECRET}@a:1/la",
        f"etcd://kdir:{SECRET}@a:nonsense/la",
        f"etcd://my kdir:{SECRET}@a:1/la",
        f"etcd://kdir: {SECRET}@a:1/la",
        f"etcd://kdir:12345 {SECRET}@a:1/la",
        f"etcd://kdir:{SECRET}@a:1",
        f"etcd://kdir:{SECRET}@a:1/la?password_file=/p",
        f"etcd://kdir:{SECRET}@a:1/la?password=x",
    ],
)
def test_no_mistake_shows_a_password(text: str) -> None:
    with pytest.raises(IncompatibleStore) as refused:
        EtcdAddress.parse(text)
    assert SECRET not in str(refused.value)


def test_one_prefix_holds_nothing_of_another() -> None:
    la = Layout(EtcdAddress.parse("etcd://a/la").root)
    for other in ("etcd://a/la2", "etcd://a/la.b", "etcd://a/l", "etcd://a/la-x"):
        foreign = Layout(EtcdAddress.parse(other).root)
        for key in (foreign.commit, foreign.identity, foreign.row(b"k"), foreign.alive):
            assert not la.root <= key < la.root_end


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("etcd://a,b:2379,c/la", "etcd://c:2379,A,b/la", True),
        ("etcd://a,b/la", "etcd://b,x/la", True),
        ("etcd://u:p@a/la", "etcd://v:q@a:2379/la?ca=/ca.pem", True),
        ("etcd://a/la", "etcd://b/la", False),
        ("etcd://a/la", "etcd://a:2380/la", False),
        ("etcd://a/la", "etcd://a/la2", False),
        ("etcd://a/la", "sqlite:////tmp/la", False),
        ("sqlite:////tmp/x/../la", "sqlite:////tmp/la", True),
        ("etcd://a/la", "a backup of la", False),
        ("a backup of la", "a backup of la", False),
    ],
)
def test_one_place_is_known_however_it_is_written(one: str, other: str, same: bool) -> None:
    assert is_same_place(one, other) is same
    assert is_same_place(other, one) is same
