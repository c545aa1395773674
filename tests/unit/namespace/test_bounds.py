"""Each bound on an entry: at it, beyond it, ten times beyond it; and what stands already."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from directory.namespace.bounds import DEFAULT_BOUNDS, Bounds, check_mask
from directory.namespace.command import (
    Command,
    CreateDirectory,
    CreateLink,
    CreateMount,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Link, Mount, Policies
from directory.namespace.updatable_fields import apply_changes
from directory.server.config import ConfigError, Limits, parse_config
from resolver.errors import InvalidArgument, KdirError, LimitExceeded
from tests.support.trees import Cluster, path

SMALL = Bounds(
    policy_text_bytes=400,
    policy_tags=5,
    policy_tag_bytes=40,
    policy_keys=110,
    policies_bytes=4_000,
    mask_paths=30,
    link_targets=4,
    mount_endpoints=3,
)
HUGE = Bounds(**{one.name: 10**9 for one in fields(Bounds)})
V = "redpanda."
"""A vendor's configs: any text is taken."""


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(bounds=SMALL)
    made.do(
        CreateDirectory(path=path("/la/d")),
        CreateLink(path=path("/la/l"), targets=(path("/ny"),)),
        CreateMount(path=path("/la/m"), cluster_id="kc-1"),
    )
    return made


def update(text: str, **changes: object) -> UpdateEntry:
    return UpdateEntry(
        path=path(text), changes={key.replace("__", "."): one for key, one in changes.items()}
    )


def tags(count: int) -> dict[str, str | None]:
    return {f"t{number}": "x" for number in range(count)}


def configs(count: int) -> dict[str, str | None]:
    return {f"{V}{number}": "x" for number in range(count)}


def of_bytes(size: int) -> Policies:
    """Returns policies of just so many bytes, in texts that are each short enough."""
    made: dict[str, str | None] = {}
    left = size
    while left > 0:
        key = f"{V}{len(made):04d}"
        made[key] = "x" * min(380, max(0, left - len(key)))
        left -= len(key) + len(made[key] or "")
    assert left == 0, "choose another size"
    return Policies(topic_config=made)


def targets(count: int) -> tuple[Any, ...]:
    return tuple(path(f"/ny/{number}") for number in range(count))


def endpoints(count: int) -> tuple[str, ...]:
    return tuple(f"h{number}:1" for number in range(count))


CASES: Mapping[str, tuple[int, str, Callable[[int], Command]]] = {
    "description": (
        400,
        "policy_text_bytes",
        lambda size: update("/la/d", policies__description="x" * size),
    ),
    "owner, in bytes": (
        400,
        "policy_text_bytes",
        lambda size: update("/la/d", policies__owner="é" * (size // 2) + "x" * (size % 2)),
    ),
    "a value": (
        400,
        "policy_text_bytes",
        lambda size: UpdateEntry(
            path=path("/la/d"), changes={f"policies.topic_config.{V}a": "x" * size}
        ),
    ),
    "contact of a new one": (
        400,
        "policy_text_bytes",
        lambda size: CreateDirectory(path=path("/la/n"), policies=Policies(contact="x" * size)),
    ),
    "a tag": (
        40,
        "policy_tag_bytes",
        lambda size: UpdateEntry(
            path=path("/la/d"), changes={"policies.tags.team": "x" * (size - 4)}
        ),
    ),
    "tags": (5, "policy_tags", lambda count: update("/la/d", policies__tags=tags(count))),
    "tags one by one": (
        5,
        "policy_tags",
        lambda count: UpdateEntry(
            path=path("/la/d"),
            changes={f"policies.tags.t{number}": "x" for number in range(count)},
        ),
    ),
    "tags of a new one": (
        5,
        "policy_tags",
        lambda count: CreateDirectory(path=path("/la/n"), policies=Policies(tags=tags(count))),
    ),
    "keys": (
        110,
        "policy_keys",
        lambda count: update("/la/d", policies__topic_config=configs(count)),
    ),
    "keys of all": (
        110,
        "policy_keys",
        lambda count: update("/la/d", policies=Policies(topic_config=configs(count))),
    ),
    "policies": (4_000, "policies_bytes", lambda size: update("/la/d", policies=of_bytes(size))),
    "targets": (4, "link_targets", lambda count: update("/la/l", link__targets=targets(count))),
    "targets of a new one": (
        4,
        "link_targets",
        lambda count: CreateLink(path=path("/la/n"), targets=targets(count)),
    ),
    "endpoints": (
        3,
        "mount_endpoints",
        lambda count: update("/la/m", mount__endpoints=endpoints(count)),
    ),
    "endpoints of a new one": (
        3,
        "mount_endpoints",
        lambda count: CreateMount(
            path=path("/la/n"), cluster_id="kc-2", endpoints=endpoints(count)
        ),
    ),
    "a mount's name": (
        400,
        "policy_text_bytes",
        lambda size: update("/la/m", mount__cluster="x" * size),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_at_it_beyond_it_and_ten_times_beyond_it(
    cluster: Cluster, case: tuple[int, str, Callable[[int], Command]]
) -> None:
    bound, setting, command = case
    assert cluster.plan(command(bound)).writes
    for over in (bound + 1, 10 * bound):
        roomy = Cluster(bounds=HUGE)
        roomy.rows, roomy.snapshot = cluster.rows, cluster.snapshot
        assert roomy.plan(command(over)).writes
        before = cluster.rows.revision
        # Ten times too many keys may be too many bytes as well; each is named with its setting.
        with pytest.raises(LimitExceeded, match=rf"limits\.{setting}") as caught:
            cluster.do(command(over))
        assert cluster.rows.revision == before
        assert caught.value.metadata.keys() >= {"field", "found", "limit"}
        assert f"at most {bound} " in caught.value.message
        assert len(caught.value.message) < 300


def test_each_bound_is_a_setting() -> None:
    limits = Limits()
    assert limits.bounds == DEFAULT_BOUNDS
    given_ = {one.name: 7 for one in fields(Bounds)}
    assert parse_config({"limits": given_}).limits.bounds == Bounds(**given_)
    with pytest.raises(ConfigError, match="policy_tag"):
        parse_config({"limits": {"policy_tagz": 1}})


# -- what does not print ---------------------------------------------------------------------------

STRANGE = ["\x1b[2J", "a\nb", "a\tb", "\x9b", "\u202eabc", "\u2028", "\x00", "\x7f", "\u200b"]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
@pytest.mark.parametrize(
    "command",
    [
        lambda text: update("/la/d", policies__owner=text),
        lambda text: update("/la/d", policies__contact=text),
        lambda text: update("/la/d", policies__description=text),
        lambda text: update("/la/d", policies__encryption_key_id=text),
        lambda text: update("/la/d", policies__tags={"team": text}),
        lambda text: update("/la/d", policies__tags={text: "x"}),
        lambda text: UpdateEntry(path=path("/la/d"), changes={f"policies.tags.{text}": "x"}),
        lambda text: update("/la/d", policies__producer_defaults={"client.id": text}),
        lambda text: update("/la/d", policies__consumer_defaults={"client.rack": text}),
        lambda text: update("/la/d", policies__topic_config={V + "x": text}),
        lambda text: update("/la/d", policies__topic_config={V + text: "x"}),
        lambda text: update("/la/d", policies=Policies(owner=text)),
        lambda text: CreateDirectory(path=path("/la/n"), policies=Policies(description=text)),
        lambda text: update("/la/m", mount__cluster=text),
        lambda text: update("/la/m", mount__endpoints=(f"{text}:1",)),
        lambda text: CreateMount(path=path("/la/n"), cluster_id="kc-2", cluster=text),
        lambda text: CreateMount(path=path("/la/n"), cluster_id=f"kc-{text}"),
    ],
)
def test_text_that_does_not_print_is_refused(
    cluster: Cluster, command: Callable[[str], Command], text: str
) -> None:
    with pytest.raises(InvalidArgument, match="does not print") as caught:
        cluster.do(command(text))
    assert caught.value.message.isprintable()
    assert caught.value.metadata["field"].isprintable()


# -- what stands already ---------------------------------------------------------------------------


def test_what_is_larger_already_stays_readable_and_may_become_smaller() -> None:
    cluster = Cluster(bounds=HUGE)
    cluster.do(
        CreateDirectory(
            path=path("/la/d"),
            policies=Policies(description="x" * 5_000, tags=tags(50), topic_config=configs(200)),
        ),
        CreateLink(path=path("/la/l"), targets=targets(40)),
        CreateMount(path=path("/la/m"), cluster_id="kc-1", endpoints=endpoints(40)),
    )

    def do(command: Command) -> None:
        cluster.do(command, bounds=SMALL)

    do(update("/la/d", policies__description="x" * 4_900))
    do(update("/la/d", policies__description="x" * 4_890, policies__owner="search"))
    do(update("/la/d", policies__tags__t1=None, policies__tags__t2=None))
    do(update("/la/d", policies__tags__t3="y"))
    do(update("/la/d", policies__tags=tags(30)))
    do(update("/la/l", link__targets=targets(30)))
    do(update("/la/m", mount__endpoints=endpoints(30)))
    for grown in (
        update("/la/d", policies__tags__more="x"),
        update("/la/d", policies__description="x" * 4_891),
        UpdateEntry(path=path("/la/d"), changes={f"policies.topic_config.{V}more": "x"}),
        update("/la/d", policies__contact="x" * 400),
        update("/la/l", link__targets=targets(31)),
        update("/la/m", mount__endpoints=endpoints(31)),
    ):
        with pytest.raises(LimitExceeded):
            do(grown)
    found = cluster.entry("/la/d")
    assert isinstance(found, Directory)
    assert (found.policies.description, len(found.policies.tags)) == ("x" * 4_890, 30)
    link, mount = cluster.entry("/la/l"), cluster.entry("/la/m")
    assert isinstance(link, Link)
    assert isinstance(mount, Mount)
    assert (len(link.targets), len(mount.endpoints)) == (30, 30)


def test_fewer_characters_of_more_bytes_are_not_smaller(cluster: Cluster) -> None:
    cluster.do(update("/la/d", policies__description="a" * 400, policies__tags__t="a" * 39))
    for field, text in (("description", "\N{GRINNING FACE}" * 399), ("tags.t", "é" * 38)):
        with pytest.raises(LimitExceeded, match="bytes"):
            cluster.do(UpdateEntry(path=path("/la/d"), changes={f"policies.{field}": text}))
    # Of two that are too large the one of fewer bytes is smaller.
    cluster.do(update("/la/d", policies__description="é" * 300), bounds=HUGE)
    cluster.do(update("/la/d", policies__description="a" * 599))
    with pytest.raises(LimitExceeded, match="a text of 600 bytes"):
        cluster.do(update("/la/d", policies__description="é" * 300))


def test_the_size_of_a_path_in_a_mask_is_in_bytes() -> None:
    check_mask("update_mask", ["é" * 200], SMALL)
    with pytest.raises(LimitExceeded, match="found a path of 402 bytes; expected at most 400 by"):
        check_mask("update_mask", ["é" * 201], SMALL)


def test_strange_text_that_is_there_already_is_left_alone() -> None:
    old = Policies(owner="a\x1bb", tags={"x\n": "y", "z": "a\tb"})
    entry = Directory(entry_id=9, policies=old)
    after = apply_changes(entry, {"policies.contact": "me"}, SMALL)
    assert after.policies.owner == "a\x1bb"
    assert dict(after.policies.tags) == dict(old.tags)
    gone = apply_changes(entry, {"policies.owner": None, "policies.tags.x\n": None}, SMALL)
    assert gone.policies.owner is None
    assert dict(gone.policies.tags) == {"z": "a\tb"}


# -- how much work it is ---------------------------------------------------------------------------


class Counted(dict[str, "str | None"]):
    """A map that counts how often it is gone through."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        Counted.walks += 1
        return super().__iter__()

    def keys(self) -> Any:
        Counted.walks += 1
        return super().keys()

    def items(self) -> Any:
        Counted.walks += 1
        return super().items()

    def values(self) -> Any:
        Counted.walks += 1
        return super().values()


@settings(max_examples=6)
@given(
    names=st.lists(st.sampled_from(["tags", "topic_config"]), min_size=1, max_size=2, unique=True),
    count=st.sampled_from([1, 10, 1_000, 100_000]),
    removed=st.booleans(),
)
def test_a_map_is_copied_once_however_many_keys_change(
    names: list[str], count: int, removed: bool
) -> None:
    before = {name: Counted({f"{V}{at}": "x" for at in range(count)}) for name in names}
    entry = Directory(entry_id=9, policies=Policies(**before))  # type: ignore[arg-type]
    value = None if removed else "y"
    changes: dict[str, object] = {
        f"policies.{name}.{V}{at}": value for at in range(count) for name in names
    }
    Counted.walks = 0
    checked: list[int] = []
    after = apply_changes(entry, changes, HUGE, lambda: checked.append(1))
    assert Counted.walks <= 12 * len(names)
    assert len(checked) >= len(changes) // 256
    for name in names:
        assert len(getattr(after.policies, name)) == (0 if removed else count)


def test_a_long_name_is_not_compared_and_not_repeated() -> None:
    entry = Directory(entry_id=9)
    for field, value in (
        ("policies." + "x" * 3_000_000, "y"),
        ("x" * 3_000_000, "y"),
        ("policies.topic_config." + "x" * 3_000, "y"),
        ("policies.producer_defaults." + "x" * 3_000, "y"),
        ("policies.manage." + "x" * 3_000_000, True),
        ("policies.owner." + "x" * 3_000_000, "y"),
        ("policies.topic_config.retention.ms", "x" * 3_000),
        ("policies.partitions", "x" * 3_000_000),
    ):
        with pytest.raises(KdirError) as caught:
            apply_changes(entry, {field: value})
        assert len(caught.value.message) < 500
        assert all(len(fact) < 500 for fact in caught.value.metadata.values())
