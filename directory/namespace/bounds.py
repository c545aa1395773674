"""Bounds of what a request may put into an entry, and the characters that its texts may have.

Only new and growing values are checked. A value in the store, written by an older version, is read
and sent as it is, may stay, and may shrink. The numbers are settings (``[limits]`` of a server's
config; the table is in ``docs/security.md``).
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
    """Bounds of one cluster; ``directory.server.config.Limits`` describes each and has these
    defaults.
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
    """Bounds of one cluster's mount table; ``Limits`` describes these, too."""

    child_mounts: int = 2_000
    child_mount_bytes: int = 512 * 1024
    table_mounts: int = 10_000
    table_bytes: int = 4 * 1024 * 1024
    mount_endpoints: int = DEFAULT_BOUNDS.mount_endpoints


DEFAULT_TABLE_BOUNDS: Final = TableBounds()


def check_text(field: str, text: str, most_bytes: int, setting: str, *, before: str = "") -> None:
    """Checks a new text: each character prints, and its length is within the bound.

    Raises:
        InvalidArgument: names a character that does not print, with its position.
        LimitExceeded: it is too long, and no shorter than the previous value.
    """
    size = _size(text)
    if size > most_bytes and size >= _size(before):
        raise _exceeded(field, f"a text of {size} bytes", most_bytes, "bytes", setting)
    if strange := first_unprintable(text):
        raise InvalidArgument(
            f"{cut_name(field)}: found a character that does not print, {strange}; "
            f"expected one line of printable characters",
            field=cut_name(field),
            found=strange,
        )


def check_count(field: str, count: int, most: int, what: str, setting: str) -> None:
    """Checks the number of elements.

    Raises:
        LimitExceeded: there are too many.
    """
    if count > most:
        raise _exceeded(field, f"{count} {what}", most, what, setting)


def check_mask(field: str, paths: Sequence[str], bounds: Bounds) -> None:
    """Checks the field mask of a request before its paths are processed.

    Raises:
        LimitExceeded: too many paths, or one that is too long.
    """
    check_count(field, len(paths), bounds.mask_paths, "paths", "mask_paths")
    for path in paths:
        size = _size(path)
        if size > bounds.policy_text_bytes:
            raise _exceeded(
                f"{field}: {cut_shown(path)}",
                f"a path of {size} bytes",
                bounds.policy_text_bytes,
                "bytes",
                "policy_text_bytes",
            )


def check_policy_bounds(after: Policies, before: Policies, bounds: Bounds) -> None:
    """Checks the new values in the policies of one entry, and the size of all of them together.

    Costs a few passes over the keys, however many of them change.

    Raises:
        InvalidArgument, LimitExceeded: names the field, the value found and the allowed one.
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
    """Yields the keys with a new value: key, value, previous value."""
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
    size = _size(key) + _size(value or "")
    if name == "tags" and size > bounds.policy_tag_bytes and size >= _size(key) + _size(old or ""):
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
    return _size("".join(texts))  # a tenth of the time of encoding each


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def check_mount(after: Mount, before: Mount | None, bounds: Bounds) -> None:
    """Checks the fields of a mount that describe its child.

    Raises:
        InvalidArgument, LimitExceeded: names the field.
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
    """Checks the address of a server: ``host:port`` and nothing else.

    Raises:
        InvalidArgument, LimitExceeded: names the endpoint.
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
