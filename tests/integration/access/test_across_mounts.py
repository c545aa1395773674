"""Three clusters over mTLS that enforce: grants of one hold in those below it, and come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import access_pb2, access_pb2_grpc, entry_pb2

from resolver import Resolver
from resolver.errors import Absent, PermissionDenied
from tests.integration.identity.conftest import SecureFederation
from tests.support.command_line import Ran
from tests.support.federation import Server, eventually
from tests.support.identities import Authority, Issued

ENFORCE: dict[str, Any] = {
    "access": "enforce",
    "auth": {"super_users": ["User:admin"]},
}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def three(tmp_path: Path, authority: Authority) -> Iterator[SecureFederation]:
    with SecureFederation(tmp_path / "servers", authority) as federation:
        federation.start("/", **ENFORCE)
        federation.join("/la", "/", **ENFORCE)
        federation.join("/la/tracking", "/la", **ENFORCE)
        federation["/la"].mkdir("/la/own")
        federation["/la/tracking"].mkdir("/la/tracking/search/deep")
        eventually(lambda: set(federation["/"].mounted()) == {"/la", "/la/tracking"})
        yield federation


def grant(server: Server, who: str, path: str, *arguments: str, mount: bool = False) -> str:
    grants = [
        access_pb2.Grant(
            principal=f"User:{who}",
            operation=f"OPERATION_{argument.removeprefix('-').upper()}",
            permission=access_pb2.PERMISSION_DENY
            if argument.startswith("-")
            else access_pb2.PERMISSION_ALLOW,
        )
        for argument in arguments
    ]
    kind = entry_pb2.ENTRY_KIND_MOUNT if mount else entry_pb2.ENTRY_KIND_UNSPECIFIED
    request = access_pb2.AddGrantsRequest(path=path, grants=grants, kind=kind)
    return str(server.ask(access_pb2_grpc.AccessServiceStub, "AddGrants", request).token)


def files(issued: Issued) -> dict[str, Any]:
    return {part: str(file) for part, file in issued.files.items()}


def test_grants_reach_the_clusters_below_and_denies_beat_them_there(
    three: SecureFederation, authority: Authority
) -> None:
    bob = authority.issue("bob")
    with Resolver(three["/"].address, **files(bob), max_entries=1) as client:

        def sees(path: str) -> bool:
            client.forget()
            try:
                return bool(client.resolve(path, prefer="directory").path == path)
            except Absent:
                return False

        assert not sees("/la/tracking/search")
        # On the mount, in the cluster that mounts it: of all below.
        grant(three["/"], "bob", "/la", "read", mount=True)
        eventually(lambda: sees("/la/tracking/search/deep"))
        eventually(lambda: sees("/la/own"))
        found = client.check("/la/tracking/search", "bob", "describe", explain=True)
        assert (found.allowed, found.deciding_path) == (True, "/la")
        assert found.response.levels[0].inherited
        assert client.authorize_any("bob", "read", path="/la/tracking")
        assert not client.authorize_any("bob", "write", path="/la/tracking")
        with pytest.raises(PermissionDenied):
            client.call(
                "/la/tracking/search",
                "AccessService.AddGrants",
                access_pb2.AddGrantsRequest(
                    grants=[access_pb2.Grant(principal="User:x", operation=2, permission=2)]  # type: ignore[arg-type]
                ),
            )

        # The middle one denies; the one below had allowed it itself.
        grant(three["/la/tracking"], "bob", "/la/tracking/search", "read")
        grant(three["/la"], "bob", "/la/tracking", "-describe", mount=True)
        eventually(lambda: not sees("/la/tracking/search/deep"))
        assert sees("/la/own")

        # What was handed down is in the child's own store: it holds without the parent, from the
        # first answer after a restart.
        three["/la"].kill()
        tracking = three["/la/tracking"]
        tracking.kill()
        tracking.start()
        with Resolver(tracking.address, **files(bob)) as near, pytest.raises(Absent):
            near.resolve("/la/tracking/search/deep", prefer="directory")


def test_N4_N5_an_open_stream_ends_when_a_parent_takes_the_right_away(
    three: SecureFederation, authority: Authority
) -> None:
    bob = authority.issue("bob")
    grant(three["/"], "bob", "/", "describe")
    with Resolver(three["/la/tracking"].address, **files(bob)) as client:
        eventually(lambda: client.check("/la/tracking", "bob", "describe").allowed)
        watching = client.watch("/la/tracking/search")
        grant(three["/"], "bob", "/", "-all")
        with pytest.raises(Absent):
            list(watching)
        watching.close()


def test_the_command_line_grants_checks_and_revokes(
    three: SecureFederation, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.command_line import run

    def kdir(who: str, arguments: str) -> Ran:
        issued = authority.issue(who)
        for part, file in issued.files.items():
            monkeypatch.setenv(f"KDIR_{part.upper()}", str(file))
        return run([*arguments.split(), "--at", three["/"].address])

    search = "/la/tracking/search"
    planned = kdir("admin", f"grant bob read,alter {search} --plan")
    assert (planned.code, [line.split()[0] for line in planned.lines]) == (
        0,
        ["ALLOW", "ALLOW", "access"],
    )
    assert planned.lines[2].split("\t")[1:4] == ["User:bob", "*", "READ,ALTER,DESCRIBE"]
    assert kdir("admin", f"check bob read {search}").code == 4
    given = kdir("admin", f"grant bob read,alter {search}")
    assert "ALLOW User:bob READ TOPIC from *" in given.lines
    assert "no change: " in kdir("admin", f"grant bob read {search}").err
    assert kdir("bob", f"ls {search}").lines == ["deep/"]
    why = kdir("bob", f"check bob describe {search}/deep --explain")
    assert (why.code, "READ implies" in why.out, f"  {search}" in why.lines) == (0, True, True)
    assert len(kdir("bob", f"grants {search}").lines) == 2
    assert kdir("bob", f"grant eve all {search} --deny --host 10.0.0.1").code == 0
    assert kdir("admin", f"check eve read {search} --host 10.0.0.1").lines[0].startswith("denied")
    assert kdir("admin", f"grant bob read {search} --group search-*").code == 0
    assert kdir("admin", f"check bob read {search} --group search-1").code == 0
    anywhere = kdir("admin", "check bob read --any topic /la/tracking")
    assert anywhere.lines == ["allowed"]
    assert "of cluster la-tracking, not only" in anywhere.err
    assert kdir("bob", f"rm -r {search}").code == 4
    assert kdir("eve", f"ls {search}").code == 1
    assert kdir("admin", f"revoke bob read,alter {search}").code == 0
    assert kdir("bob", f"ls {search}").code == 1
    assert kdir("admin", f"grant bob reed {search}").code == 2
    assert kdir("admin", f"grant bob read {search} --group a --cluster").code == 2
    # Without any right: who it is, and what is missing; a plan that a cluster below denies says so.
    why = kdir("bob", f"check bob describe {search} --explain")
    assert (why.code, f"denied: User:bob lacks DESCRIBE on {search};" in why.out) == (4, True)
    doctor = kdir("bob", "doctor")
    assert (doctor.code, "identity: User:bob by certificate" in doctor.err) == (4, True), doctor.err
    assert kdir("admin", "grant bob all /la").code == 0
    assert kdir("admin", "grant bob alter,alter-configs /la/tracking --deny").code == 0
    planned = kdir("bob", "set /la owner=x --plan")
    assert planned.code == 3, planned.err
    assert "not known: la-tracking denied it: " in planned.err
    assert "incomplete: the plan of a cluster below is not known; counts are" in planned.err


def test_an_inherited_allow_ends_though_the_parent_that_is_cut_off_itself_is_linked(
    tmp_path: Path, authority: Authority
) -> None:
    """The root may have revoked it; the cluster in between would not know."""
    bob = authority.issue("bob")
    below = {**ENFORCE, "limits": {"inherited_grants_max_age_seconds": 2.0}}
    with SecureFederation(tmp_path / "servers", authority) as federation:
        root = federation.start("/", **ENFORCE)
        federation.join("/la", "/", **ENFORCE)
        tracking = federation.join("/la/tracking", "/la", **below)
        tracking.mkdir("/la/tracking/search")
        grant(root, "bob", "/la", "read", mount=True)
        with Resolver(tracking.address, **files(bob), max_entries=1) as client:

            def sees() -> bool:
                client.forget()
                try:
                    return bool(client.resolve("/la/tracking/search", prefer="directory"))
                except Absent:
                    return False

            eventually(sees)
            root.kill()
            assert eventually(lambda: not sees())
            assert tracking.status().parent.linked
            assert tracking.resolve("/la/tracking").authority.unconfirmed_seconds > 2.0
            root.start()
            assert eventually(sees)
            assert eventually(
                lambda: (
                    not tracking.resolve("/la/tracking").authority.HasField("unconfirmed_seconds")
                )
            )
