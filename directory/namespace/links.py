"""What a link may point at; refuses to follow one: whoever asks for a path does (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Sequence

from resolver.errors import InvalidArgument
from resolver.path import Path

__all__ = ["check_targets"]


def check_targets(path: Path, targets: Sequence[Path]) -> None:
    """A link needs a target, none twice, and none at or below itself: that would never end.

    Raises:
        InvalidArgument: naming the target and the rule.
    """
    if not targets:
        raise InvalidArgument(
            "link.targets is empty; at least one absolute path would be right", field="link.targets"
        )
    for position, target in enumerate(targets, start=1):
        if path.is_prefix_of(target):
            raise InvalidArgument(
                f"link.targets: target {position} is {target}, at or below the link {path} itself; "
                f"it would lead to itself again and again",
                field="link.targets",
                target=target,
            )
        if target in targets[: position - 1]:
            raise InvalidArgument(
                f"link.targets: {target} is named twice", field="link.targets", target=target
            )
