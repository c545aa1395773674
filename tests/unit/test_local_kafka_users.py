"""What local brokers are told of users; ``kafka/test_acl_*.py`` shows that they tell them apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.kafka_users import SaslUsers, TlsUsers


def test_each_user_has_a_password_of_its_own_that_only_the_broker_knows() -> None:
    users = SaslUsers(["alice", "bob"])
    assert len(set(users.passwords.values())) == 3
    reported = users.properties(["SASL_PLAINTEXT", "CONTROLLER"])
    for name in ("sasl_plaintext", "controller"):
        line = reported[f"listener.name.{name}.plain.sasl.jaas.config"]
        assert f'user_alice="{users.passwords["alice"]}"' in line
    assert users.client("alice")["sasl.password"] == users.passwords["alice"]
    with pytest.raises(KeyError):
        users.client("carol")


def test_what_has_no_acl_is_open_only_where_that_is_set() -> None:
    key = "allow.everyone.if.no.acl.found"
    assert key not in SaslUsers().properties([])
    assert SaslUsers(open_to_all=True).properties([])[key] == "true"


def test_what_a_broker_cannot_be_given_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="user 'a\"b'"):
        SaslUsers(['a"b'])
    with pytest.raises(ValueError, match="super user"):
        SaslUsers(["alice"], super_users=[])
    with pytest.raises(ValueError, match="no certificate of admin"):
        TlsUsers(tmp_path, {"alice": (tmp_path, tmp_path)})
