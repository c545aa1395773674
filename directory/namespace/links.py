"""What a link may point at; refuses to follow one: whoever asks for a path does."""

from __future__ import annotations

from collections.abc import Sequence

from directory.namespace.bounds import Bounds, check_count
from resolver.errors import InvalidArgument
from resolver.path import Path

__all__ = ["check_targets"]


def check_targets(
    path: Path, targets: Sequence[Path], bounds: Bounds, before: Sequence[Path] = ()
) -> None:
    """A link needs a target, none twice, and none at or below itself: that would never end.

    Raises:
        InvalidArgument: naming the target and the rule.
        LimitExceeded: more than the bounds allow, and more than it had.
    """
    if not targets:
        raise InvalidArgument(
            "link.targets is empty; expected at least one absolute path", field="link.targets"
        )
    if len(targets) > len(before):
        check_count("link.targets", len(targets), bounds.link_targets, "targets", "link_targets")
    seen: set[Path] = set()
    for position, target in enumerate(targets, start=1):
        if path.is_prefix_of(target):
            raise InvalidArgument(
                f"link.targets: target {position} is {target}, at or below the link {path} itself; "
                f"it would lead to itself again and again",
                field="link.targets",
                target=target,
            )
        if target in seen:
            raise InvalidArgument(
                f"link.targets: {target} is named twice", field="link.targets", target=target
            )
        seen.add(target)
