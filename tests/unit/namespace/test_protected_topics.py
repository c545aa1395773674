"""Topics that kdir never touches, by their names: Kafka's own, and those of change logs."""

import pytest

from directory.change_log.settings import ChangeLogConfig
from directory.kafka.own_client_settings import ClientProperties
from directory.namespace.protected_topics import is_protected


@pytest.mark.parametrize(
    "name", ["__consumer_offsets", "__transaction_state", "__share_group_state", "__change_events"]
)
def test_internal_topics(name: str) -> None:
    assert is_protected(name)


@pytest.mark.parametrize("is_shared", [False, True], ids=["own", "named"])
def test_P10_the_topics_of_a_change_log_are_kdirs_in_any_kafka(*, is_shared: bool) -> None:
    for name in ChangeLogConfig((), ClientProperties(), is_shared).topics("kc-7ouixd3db5"):
        assert is_protected(name)
        assert is_protected(name.replace(".", "_")), "Kafka takes it for the same"


@pytest.mark.parametrize(
    "name", ["_schemas", "a__b", "orders", "__change_events-diff-suffix", "not__change_events"]
)
def test_topics_of_people(name: str) -> None:
    assert not is_protected(name)
