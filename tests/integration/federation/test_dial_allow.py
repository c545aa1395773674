"""``[dial] allow``: which servers a server asks in a caller's name, of those that others name."""

from pathlib import Path

import pytest

from resolver import Resolver
from resolver.errors import BadReferral
from tests.support.federation import Federation


@pytest.mark.parametrize(
    ("allow", "arguments"),
    [
        (["127.0.0.0/8"], ""),
        (["10.0.0.0/8", "example.com"], "not in the allow list (10.0.0.0/8, example.com)"),
        ([], "not in the allow list (nothing)"),
    ],
)
def test_a_server_asks_in_a_caller_s_name_only_servers_that_its_config_allows(
    tmp_path: Path, allow: list[str], arguments: str
) -> None:
    with Federation(tmp_path) as federation:
        root = federation.start("/", dial={"allow": allow})
        la = federation.join("/la", "/")
        la.mkdir("/la/search")
        wanted = "resolution" if not arguments else "BAD_REFERRAL"
        assert root.outcome("/la/search", recursive=True) == wanted
        assert root.outcome("/la/search") == "referral", "a client has a list of its own"
        with Resolver(root.address, allow=allow) as client:
            if not arguments:
                assert client.resolve("/la/search", prefer="directory").cluster_id == la.cluster_id
                return
            with pytest.raises(BadReferral) as refused:
                client.resolve("/la/search")
            assert f"endpoint {la.address}: {arguments}" in refused.value.message
            with pytest.raises(BadReferral) as refused:
                client.which(la.cluster_id, "x")
            assert f"endpoint {la.address}: {arguments}" in refused.value.message
        with pytest.raises(BadReferral) as reported:
            root.resolve("/la/search", recursive=True)
        assert f"endpoint {la.address}: {arguments}" in reported.value.message
