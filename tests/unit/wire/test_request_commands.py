"""What a request to create or update an entry is refused for before anything is planned."""

import pytest
from kdir.v1 import directory_pb2, entry_pb2, policies_pb2

from directory.namespace.command import CreateDirectory, CreateTopic
from directory.wire.request_commands import create_command, update_command
from resolver.errors import InvalidArgument
from resolver.path import Path

PATH = Path.parse("/a/b")


def _directory(**manage: bool) -> entry_pb2.Entry:
    return entry_pb2.Entry(
        directory=entry_pb2.Directory(), policies=policies_pb2.Policies(manage=manage)
    )


@pytest.mark.parametrize(
    "entry",
    [
        _directory(),
        entry_pb2.Entry(link=entry_pb2.Link(targets=["/c"])),
        entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-1")),
    ],
)
def test_only_a_topic_is_adopted(entry: entry_pb2.Entry) -> None:
    request = directory_pb2.CreateEntryRequest(entry=entry, adopt_existing=True)
    with pytest.raises(InvalidArgument, match=r"adopt_existing: .* expected entry.topic") as error:
        create_command(request, PATH)
    assert error.value.metadata["field"] == "adopt_existing"


def test_a_topic_may_be_adopted() -> None:
    entry = entry_pb2.Entry(topic=entry_pb2.Topic(physical_name="clicks"))
    request = directory_pb2.CreateEntryRequest(entry=entry, adopt_existing=True)
    assert isinstance(create_command(request, PATH), CreateTopic)


def test_an_aspect_is_not_set_but_armed() -> None:
    entry = _directory(configs=True)
    with pytest.raises(InvalidArgument, match=r"kdir arm /a/b --aspect configs"):
        create_command(directory_pb2.CreateEntryRequest(entry=entry), PATH)
    for field in ("policies", "policies.manage", "policies.manage.configs"):
        request = directory_pb2.UpdateEntryRequest(entry=entry)
        request.update_mask.paths.append(field)
        with pytest.raises(InvalidArgument, match=r"kdir arm /a/b --aspect configs"):
            update_command(request, PATH)


def test_what_is_no_aspect_is_left_to_planning_which_names_the_nearest() -> None:
    entry = _directory(bogus=True)
    command = create_command(directory_pb2.CreateEntryRequest(entry=entry), PATH)
    assert isinstance(command, CreateDirectory)
    assert command.policies.manage == {"bogus": True}
    request = directory_pb2.UpdateEntryRequest(entry=entry)
    request.update_mask.paths.append("policies.manage.bogus")
    assert update_command(request, PATH).changes == {"policies.manage.bogus": True}


@pytest.mark.parametrize(
    "entry",
    [
        entry_pb2.Entry(link=entry_pb2.Link(targets=["/x"])),
        entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-x")),
    ],
)
def test_policies_of_a_link_or_mount_are_refused_and_not_dropped(entry: entry_pb2.Entry) -> None:
    entry.policies.SetInParent()
    request = directory_pb2.CreateEntryRequest(entry=entry)
    create_command(request, PATH)
    request.entry.policies.read_only = False
    kind = entry.WhichOneof("kind")
    with pytest.raises(InvalidArgument, match=f"policies: a {kind} has no policies; ") as refused:
        create_command(request, PATH)
    assert refused.value.metadata["field"] == "policies"


def test_a_key_without_a_value_is_shown_cut_and_printable() -> None:
    entry = _directory()
    key = "\x1b[31m" + "x" * 1_000
    entry.policies.tags[key].SetInParent()
    request = directory_pb2.CreateEntryRequest(entry=entry)
    with pytest.raises(InvalidArgument, match=r"policies\.tags\[\\x1b\[31mx+…\]: neither") as error:
        create_command(request, PATH)
    assert len(str(error.value)) < 300
