"""S19 for the holder of the link to the parent: paused, replaced, woken; it says nothing more."""

from __future__ import annotations

from tests.conftest import SharedEtcd
from tests.support.federation import Federation, Server, eventually


def is_linked(server: Server) -> bool:
    parent = server.status().parent
    return parent.linked and not parent.standby


def test_S19_a_paused_holder_of_the_parent_link_is_replaced_and_is_standby_when_it_is_woken(
    federation: Federation, etcd_cluster: SharedEtcd
) -> None:
    store = etcd_cluster.address()
    root = federation.start("/")
    first = federation.join("/la", "/", store=store)
    second = federation.start("/la", "/", store=store)
    assert eventually(lambda: second.status().parent.standby)
    first.pause()
    eventually(lambda: is_linked(second), 60)
    # Word of the parent that only the new holder hears, and commits.
    root.mount_child("/ny", "kc-elsewhere")
    eventually(lambda: "/ny" in second.mounted())
    first.resume()
    # Its stream may be open still; what it would write is fenced, and it resigns.
    eventually(lambda: first.status().parent.standby, 60)
    assert eventually(lambda: "/ny" in first.mounted()), "it follows the store again"
    eventually(lambda: is_linked(second))
    root.mount_child("/paris", "kc-else")
    eventually(lambda: {"/ny", "/paris"} <= set(first.mounted()))
    assert "/ny" in second.mounted(), "nothing old came back"
    # The parent heard one child all along.
    eventually(lambda: [row.linked for row in root.mounts().rows if row.mount == "/la"] == [True])
    assert root.outcome("/la") == "referral"
