"""Principals and hosts: what is taken, and what is refused with which words."""

from __future__ import annotations

import pytest

from directory.access.principals import Caller, check_principal, parse_host, parse_principal
from resolver.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("User:alice", ("User", "alice")),
        ("User:name:with:separator:in:it", ("User", "name:with:separator:in:it")),
        ("Group:foo", ("Group", "foo")),
        ("User:CN=alice, OU=x", ("User", "CN=alice, OU=x")),
        ("User:*", ("User", "*")),
        ("User:büro", ("User", "büro")),
    ],
)
def test_a_principal_has_a_type_and_a_name(text: str, parts: tuple[str, str]) -> None:
    assert parse_principal(text) == parts
    assert check_principal(text) == text


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("bob", "found 'bob'; expected Type:name, such as User:bob"),
        ("", "found ''; expected Type:name"),
        (":alice", "found ':alice'; expected Type:name"),
        ("User:", "found 'User:'; expected Type:name"),
        (" User:bob", "found ' User:bob'; expected Type:name"),
        ("Us er:bob", "expected Type:name"),
        ("User: bob", "blanks around the name"),
        ("User:bob\n", "characters that do not print"),
        ("User:bo\u202eb", "characters that do not print"),
        ("User:" + "x" * 2000, "2005 characters; expected at most 1024"),
        ("Group:*", "everybody, of whatever type, is User:*"),
    ],
)
def test_A7_what_is_no_principal_is_refused(text: str, output: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_principal(text)
    assert output in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.168.0.1", "192.168.0.1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("::ffff:192.168.0.1", "192.168.0.1"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_has_one_form(text: str, address: str) -> None:
    assert parse_host(text) == address


@pytest.mark.parametrize("text", ["localhost", "", "*", "10.0.0.0/8", "10.1", "0x7f.1", "١.١.١.١"])
def test_A7_a_name_of_a_host_is_no_address(text: str) -> None:
    with pytest.raises(InvalidArgument, match="expected an IP address \\(INVALID"):
        parse_host(text)


def test_a_caller_is_checked_and_its_address_made_comparable() -> None:
    assert Caller.parse("User:a", "::ffff:10.0.0.1") == Caller("User:a", "10.0.0.1")
    assert Caller.parse("User:a").host == ""
    with pytest.raises(InvalidArgument):
        Caller.parse("a")
    with pytest.raises(InvalidArgument):
        Caller.parse("User:a", "here")
