"""Ports that servers get which do not listen yet, or listen again later."""

from deploy.local.ports import free_port


def test_a_port_is_not_given_again_while_there_are_others() -> None:
    """Members of an etcd cluster get six before the first of them listens."""
    assert len({free_port() for _ in range(100)}) == 100
