"""Endpoints: what is one, and how it reads back. R9 and R10 are in tests/fault."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver import errors
from resolver.endpoints import AllowList
from resolver.host_port import (
    MAX_ENDPOINTS,
    Endpoint,
    parse_endpoint,
    parse_servers,
    plain_endpoints,
)


@pytest.mark.parametrize(
    ("text", "host", "target"),
    [
        ("la:7420", "la", "dns:///la:7420"),
        ("LA.Example:7420", "la.example", "dns:///la.example:7420"),
        ("10.1.2.3:7420", "10.1.2.3", "ipv4:10.1.2.3:7420"),
        ("[2001:DB8::1]:7420", "2001:db8::1", "ipv6:[2001:db8::1]:7420"),
        ("3com.example:7420", "3com.example", "dns:///3com.example:7420"),
    ],
)
def test_an_endpoint(text: str, host: str, target: str) -> None:
    endpoint = parse_endpoint(text)
    assert (endpoint.host, endpoint.port, endpoint.target) == (host, 7420, target)
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    ["la", "la:", "la:x", "la:-1", "la:+1", "la: 1", "la:１", "2001:db8::1:7420", "[la]:7420",
     "1.2.3.256:1", "1.2.3:1", "01.2.3.4:1", "0x7f000001:1", "la/..:1", "la%25:1", "la:1:2"],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        parse_endpoint(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("la", "no port"), ("la:", "no port"), ("2001:db8::abcd", "no port"), ("[::1]", "no port"),
        ("localhost:abc", "port is no number"), ("la:-1", "port is no number"),
        ("[::1]:x", "port is no number"), ("la:0", "outside 1 to 65535"),
        ("la:123456", "outside 1 to 65535"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_port_is_named(text: str, reason: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=reason):
        parse_endpoint(text)


@given(st.text(max_size=40))
def test_anything_is_an_endpoint_or_a_clear_error(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except errors.InvalidArgument:
        return
    assert parse_endpoint(str(endpoint)) == endpoint
    assert not set(str(endpoint)) & set(" /@\r\n\0%")


def test_servers_to_begin_with() -> None:
    assert parse_servers("a:1, b:2,a:1") == (Endpoint("a", 1, False), Endpoint("b", 2, False))
    assert parse_servers(["a:1"]) == (Endpoint("a", 1, False),)
    nothings: list[str | list[str]] = ["", " , ", []]
    for nothing in nothings:
        with pytest.raises(errors.InvalidArgument):
            parse_servers(nothing)


def test_loopback_is_allowed_only_where_all_servers_are_on_it() -> None:
    local, remote = parse_endpoint("127.0.0.1:1"), parse_endpoint("la:1")
    for allow, allowed in (
        (AllowList.for_servers([local]), True),
        (AllowList.for_servers([local, remote]), False),
        (AllowList.for_servers([remote]), False),
    ):
        for text in ("127.0.0.1:7420", "localhost:7420", "[::1]:7420", "127.9.9.9:7420"):
            assert (allow.why_not_allowed(text) == "") is allowed


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="10/99"):
        AllowList(networks=["10/99"])


HERE, THERE = parse_endpoint("127.0.0.1:7420"), parse_endpoint("la.example:7420")


@pytest.mark.parametrize(
    ("allow", "start", "good", "bad"),
    [
        (["10.0.0.0/8"], THERE, ["10.1.2.3:7420"], ["11.0.0.1:7420", "la.example:7420"]),
        (
            ["example.com"],
            THERE,
            ["example.com:7420", "la.Example.COM.:7420"],
            ["badexample.com:7420", "example.com.evil.test:7420", "10.1.2.3:7420"],
        ),
        ([".example.com", "fd00::/8"], THERE, ["la.example.com:443", "[fd00::1]:7420"], ["x:7420"]),
        (["127.0.0.0/8"], HERE, ["127.0.0.1:7421"], ["10.1.2.3:7420", "localhost:7421"]),
        (["10.0.0.0/8"], HERE, ["10.1.2.3:7420"], ["127.0.0.1:7421", "[::1]:7421"]),
        # Whatever is listed: other services, and this machine where nobody named it.
        (
            ["0.0.0.0/0"],
            THERE,
            ["10.1.2.3:7420"],
            ["169.254.169.254:80", "127.0.0.1:7420", "1.2.3.4:22"],
        ),
        ([], THERE, [], ["10.1.2.3:7420", "la.example:7421"]),
        (None, THERE, ["10.1.2.3:7420", "x:7420"], ["127.0.0.1:7420"]),
    ],
)  # fmt: skip
def test_of_an_allow_list(
    allow: list[str] | None, start: Endpoint, good: list[str], bad: list[str]
) -> None:
    listed = AllowList.of(allow, [start])
    assert [one for one in good if listed.why_not_allowed(one)] == []
    assert [one for one in bad if not listed.why_not_allowed(one)] == []
    for one in bad:
        assert str(parse_endpoint(one)) in listed.why_not_allowed(one)
    if allow is not None and "10.0.0.0/8" in allow:
        assert listed.why_not_allowed("11.0.0.1:7420").endswith(
            "not in the allow list (10.0.0.0/8)"
        )


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0", "", "a b", "*.example.com", "x/y", "é"])
def test_what_is_neither_a_network_nor_a_domain_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="or a domain such as"):
        AllowList.of([text], ())


def test_of_what_others_say_only_plain_endpoints_are_kept() -> None:
    output = [
        "unix:/x",
        "la:1",
        "la:1",
        "x\ny:1",
        "h" * 400 + ":1",
        *(f"h{n}:1" for n in range(5_000)),
    ]
    kept = plain_endpoints(output)
    assert kept[:2] == ("la:1", "h0:1")
    assert len(kept) == MAX_ENDPOINTS
