"""How much a request may put into an entry, and of what characters its texts are.

What is in a store already, of an older version, is left alone: it is read and handed on as it
is, may stay, and may become smaller; only what comes new, or grows, is held to these. The numbers
are settings (``[limits]`` of a server's config; the table is in ``docs/security.md``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from directory.namespace.entry import NO_POLICIES, Mount, Policies
from resolver.errors import InvalidArgument, LimitExceeded
from resolver.host_port import MAX_ENDPOINTS, parse_endpoint
from resolver.printable import cut_name, cut_shown, first_unprintable

__all__ = [
    "DEFAULT_BOUNDS",
    "DEFAULT_TABLE_BOUNDS",
    "Bounds",
    "TableBounds",
    "check_count",
    "check_endpoint",
    "check_mask",
    "check_mount",
    "check_policy_bounds",
    "check_text",
]

_TEXTS: Final = ("owner", "contact", "description", "encryption_key_id")
_MAPS: Final = ("topic_config", "producer_defaults", "consumer_defaults", "tags")
_MOST_ENDPOINT_BYTES: Final = 300
"""A host name has 253 characters at most (RFC 1035)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one cluster; ``directory.server.config.Limits`` describes each, and has these
    numbers as its defaults.
    """

    policy_text_bytes: int = 4_096
    policy_tags: int = 64
    policy_tag_bytes: int = 256
    policy_keys: int = 1_000
    policies_bytes: int = 65_536
    mask_paths: int = 1_000
    link_targets: int = 100
    mount_endpoints: int = MAX_ENDPOINTS


DEFAULT_BOUNDS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class TableBounds:
    """The bounds of one cluster's mount table; described there, too."""

    child_mounts: int = 2_000
    child_mount_bytes: int = 512 * 1024
    table_mounts: int = 10_000
    table_bytes: int = 4 * 1024 * 1024
    mount_endpoints: int = DEFAULT_BOUNDS.mount_endpoints


DEFAULT_TABLE_BOUNDS: Final = TableBounds()


def check_text(field: str, text: str, most_bytes: int, setting: str, *, before: str = "") -> None:
    """Checks a text that comes new: each character prints, and there are not too many.

    Raises:
        InvalidArgument: a character that does not print; named, with its place.
        LimitExceeded: it is too long, and no shorter than the one before.
    """
    size = len(text.encode("utf-8", "surrogatepass")) if len(text) <= most_bytes else len(text)
    if size > most_bytes and len(text) >= len(before):
        raise _exceeded(field, f"a text of {size} bytes", most_bytes, "bytes", setting)
    if strange := first_unprintable(text):
        raise InvalidArgument(
            f"{cut_name(field)}: found a character that does not print, {strange}; "
            f"expected one line of printable characters",
            field=cut_name(field),
            found=strange,
        )


def check_count(field: str, count: int, most: int, what: str, setting: str) -> None:
    """Checks how many there are of something.

    Raises:
        LimitExceeded: too many.
    """
    if count > most:
        raise _exceeded(field, f"{count} {what}", most, what, setting)


def check_mask(field: str, paths: Sequence[str], bounds: Bounds) -> None:
    """Checks the mask of a request before anything is done for its paths.

    Raises:
        LimitExceeded: too many paths, or one that is too long.
    """
    check_count(field, len(paths), bounds.mask_paths, "paths", "mask_paths")
    for path in paths:
        if len(path) > bounds.policy_text_bytes:
            raise _exceeded(
                f"{field}: {cut_shown(path)}",
                f"a path of {len(path)} characters",
                bounds.policy_text_bytes,
                "bytes",
                "policy_text_bytes",
            )


def check_policy_bounds(after: Policies, before: Policies, bounds: Bounds) -> None:
    """Checks what comes new in the policies of one entry, and how much they are together. Looks at
    each key a few times, however many of them change.

    Raises:
        InvalidArgument, LimitExceeded: naming the field, what was found and what is allowed.
    """
    if after == NO_POLICIES:
        return
    _check_counts(after, before, bounds)
    for name in _TEXTS:
        text, old = getattr(after, name), getattr(before, name)
        if text is not None and text != old:
            field = f"policies.{name}"
            most = bounds.policy_text_bytes
            check_text(field, text, most, "policy_text_bytes", before=old or "")
    for name in _MAPS:
        for key, value, old in _news(getattr(after, name), getattr(before, name)):
            _check_setting(name, key, value, old, bounds)
    size = _bytes_of(after)
    if size > bounds.policies_bytes and size > _bytes_of(before):
        raise _exceeded(
            "policies",
            f"{size} bytes of texts, keys and values",
            bounds.policies_bytes,
            "bytes",
            "policies_bytes",
        )


def _check_counts(after: Policies, before: Policies, bounds: Bounds) -> None:
    if len(after.tags) > len(before.tags):
        check_count("policies.tags", len(after.tags), bounds.policy_tags, "tags", "policy_tags")
    keys = sum(len(getattr(after, name)) for name in _MAPS)
    if keys > sum(len(getattr(before, name)) for name in _MAPS):
        check_count("policies", keys, bounds.policy_keys, "keys", "policy_keys")


def _news(
    after: Mapping[str, str | None], before: Mapping[str, str | None]
) -> Iterator[tuple[str, str | None, str | None]]:
    """Yields the keys that are new or have another value: key, value, the value before."""
    if after is before:
        return
    for key, value in after.items():
        if key not in before or before[key] != value:
            yield key, value, before.get(key)


def _check_setting(name: str, key: str, value: str | None, old: str | None, bounds: Bounds) -> None:
    field = f"policies.{name}"
    check_text(f"{field}: a key", key, bounds.policy_text_bytes, "policy_text_bytes")
    field = f"{field}.{key}"
    if value is not None:
        most = bounds.policy_text_bytes
        check_text(field, value, most, "policy_text_bytes", before=old or "")
    size = len(key.encode()) + len((value or "").encode())
    if name == "tags" and size > bounds.policy_tag_bytes and len(value or "") >= len(old or ""):
        raise _exceeded(
            field,
            f"{size} bytes of key and value",
            bounds.policy_tag_bytes,
            "bytes",
            "policy_tag_bytes",
        )


def _bytes_of(policies: Policies) -> int:
    texts = [text for name in _TEXTS if (text := getattr(policies, name)) is not None]
    for name in _MAPS:
        settings = getattr(policies, name)
        texts += settings.keys()
        texts += filter(None, settings.values())
    # Joined first: a tenth of the time of encoding each.
    return len("".join(texts).encode("utf-8", "surrogatepass"))


def check_mount(after: Mount, before: Mount | None, bounds: Bounds) -> None:
    """Checks what a mount says of its child.

    Raises:
        InvalidArgument, LimitExceeded
    """
    most = bounds.policy_text_bytes
    for field in ("cluster_id", "cluster"):
        text, old = getattr(after, field), getattr(before, field, "")
        if text != old:
            check_text(f"mount.{field}", text, most, "policy_text_bytes", before=old)
    old_endpoints = before.endpoints if before is not None else ()
    if after.endpoints == old_endpoints:
        return
    if len(after.endpoints) > len(old_endpoints):
        what, setting = "endpoints", "mount_endpoints"
        check_count("mount.endpoints", len(after.endpoints), bounds.mount_endpoints, what, setting)
    for endpoint in after.endpoints:
        if endpoint not in old_endpoints:
            check_endpoint("mount.endpoints", endpoint)


def check_endpoint(field: str, endpoint: str) -> None:
    """Checks the address at which a server is to be asked: ``host:port`` and nothing else.

    Raises:
        InvalidArgument, LimitExceeded
    """
    check_text(field, endpoint, _MOST_ENDPOINT_BYTES, "")
    try:
        parse_endpoint(endpoint)
    except InvalidArgument as error:
        raise InvalidArgument(f"{field}: {error.message}", field=field) from None


def _exceeded(field: str, found: str, most: int, unit: str, setting: str) -> LimitExceeded:
    name = cut_name(field)
    by = f" (limits.{setting})" if setting else ""
    return LimitExceeded(
        f"{name}: found {found}; expected at most {most} {unit}{by}",
        field=name,
        found=found,
        limit=most,
    )
