"""Mapping rules: from what a certificate says to a principal, in order, in one way at most."""

import time

import pytest

from directory.server.principal_mapping import (
    DEFAULT,
    CertificateNames,
    PrincipalRule,
    parse_rules,
    principal_of,
)
from directory.server.toml_table import ConfigError

SPIFFE = "spiffe://prod/ns/search/sa/indexer"


@pytest.mark.parametrize(
    ("rules", "names", "principal"),
    [
        ([], CertificateNames(uris=(SPIFFE,), dns=("a.example",)), f"User:{SPIFFE}"),
        ([], CertificateNames(dns=("a.example", "b.example"), common_name="c"), "User:a.example"),
        ([], CertificateNames(common_name="alice"), "User:alice"),
        ([], CertificateNames(), ""),
        (
            ["URI:spiffe://prod/ns/*/sa/* -> User:$2@$1"],
            CertificateNames(uris=(SPIFFE,)),
            "User:indexer@search",
        ),
        (["URI:spiffe://prod/* -> User:$1"], CertificateNames(uris=(SPIFFE,)), ""),
        (
            ["URI:spiffe://test/ns/*/sa/* -> User:$2", "DNS:*.clients.example -> User:$1"],
            CertificateNames(uris=(SPIFFE,), dns=("x.y", "Bob.Clients.example")),
            "User:bob",
        ),
        (["DNS:*.example -> User:$1"], CertificateNames(dns=("a.b.example",)), ""),
        (["DNS:*.example -> User:$1"], CertificateNames(dns=(".example",)), ""),
        (["CN:svc-*-eu -> Service:$1"], CertificateNames(common_name="svc-a-b-eu"), "Service:a-b"),
        (["CN:svc-* -> User:$1"], CertificateNames(common_name="svc-"), ""),
        (["CN:a*a -> User:$1"], CertificateNames(common_name="a"), ""),
        (["CN:root -> User:admin", "DEFAULT"], CertificateNames(common_name="x"), "User:x"),
        (
            ["EMAIL:*@example.com -> User:$1"],
            CertificateNames(emails=("al@example.com",)),
            "User:al",
        ),
        # Nobody becomes everybody, or nobody, by a certificate; nor what no grant can name.
        ([], CertificateNames(common_name="*"), ""),
        ([], CertificateNames(common_name="ANONYMOUS"), ""),
        ([], CertificateNames(common_name="a\nb"), ""),
        # A cluster's certificate carries no user's rights, whatever else it says.
        ([], CertificateNames(uris=("kdir://cluster/kc-1",), dns=("la-1.example",)), ""),
        (["DEFAULT"], CertificateNames(uris=("x:y", "kdir://cluster/kc-1"), common_name="r"), ""),
    ],
)
def test_the_first_rule_that_matches_says_who(
    rules: list[str], names: CertificateNames, principal: str
) -> None:
    assert principal_of(names, parse_rules(rules)) == principal


@pytest.mark.parametrize(
    ("rule", "arguments"),
    [
        ("alice", "found 'alice'; expected DEFAULT, or a rule such as"),
        ("OU:x -> User:x", "URI, DNS, EMAIL or CN"),
        ("DNS:a -> ", "principal: found ''"),
        ("DNS:a -> alice", "expected Type:name, such as User:alice"),
        ("DNS:*a*.b -> User:$1", "one * in each part"),
        ("DNS:*.b -> User:$2", "$2 refers to no *; there are 1"),
        ("DNS:*.b -> User:$", "$ refers to no *"),
        ("CN:x -> User:*", "is not one principal's name"),
        ("CN:x -> User:ANONYMOUS", "is not one principal's name"),
        ("DNS: -> User:a", "DEFAULT, or a rule such as"),
    ],
)
def test_a_rule_that_is_none_is_refused_by_name(rule: str, arguments: str) -> None:
    with pytest.raises(ConfigError) as refused:
        PrincipalRule.parse(rule)
    assert arguments in str(refused.value)


def test_the_default_is_the_only_rule_where_none_are_given() -> None:
    assert parse_rules([]) == (DEFAULT,)
    assert parse_rules(["DNS:a -> User:a"]) != (DEFAULT,)


def test_the_clusters_of_a_certificate() -> None:
    names = CertificateNames(uris=("kdir://cluster/kc-1", "spiffe://x", "kdir://cluster/kc-2"))
    assert names.cluster_ids == ("kc-1", "kc-2")


def test_names_are_matched_in_linear_time() -> None:
    rule = PrincipalRule.parse("URI:" + "/".join(["a*b"] * 60) + " -> User:$1")
    short, long = ("/".join(["a" * size + "c"] * 60) for size in (500, 50_000))

    def seconds(name: str) -> float:
        names = CertificateNames(uris=(name,))
        started = time.process_time()
        for _ in range(20):
            assert rule.apply(names) == ""
        return time.process_time() - started

    # A hundred times the length: far below the ten thousandfold of a backtracking one.
    assert seconds(long) < 2000 * max(seconds(short), 1e-4)
