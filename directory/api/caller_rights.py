"""Rights of one caller in one cluster at one snapshot.

An entry that the caller may not describe is ABSENT, whatever the caller asks to do with it; one
that it may describe and not change is PERMISSION_DENIED. Each decision is written to the audit log.
"""

from __future__ import annotations

from typing import Final

from directory.access.decision import AccessQuestion, Decision, DecisionReason
from directory.access.grant_tree import EntryPlace
from directory.access.grants import Operation, ResourceType
from directory.api.visible_tree import VisibleTree, write_audit_line
from directory.namespace.entry import Kind
from resolver.errors import PermissionDenied
from resolver.path import Path

__all__ = ["CallerRights"]

_DESCRIBE: Final = AccessQuestion.for_operation(Operation.DESCRIBE)
_ANY_OPERATION: Final = tuple(
    AccessQuestion.for_operation(one) for one in Operation if one is not Operation.ALL
)


class CallerRights(VisibleTree):
    """Rights of one caller on a tree; also for super users, and where nothing is hidden."""

    __slots__ = ()

    def require_operation(
        self,
        operation: Operation,
        path: Path,
        *,
        kind: Kind | None = None,
        resource: ResourceType = ResourceType.TOPIC,
    ) -> None:
        """Checks that the caller has a right on an existing entry.

        An entry that the caller may not describe is absent for it, whatever other rights it has
        there; except if the entry's own grant allows it something, or if it may ALTER the entry and
        so could remove the grant that hides it.

        Raises:
            PermissionDenied: the caller knows of the entry and lacks the right, or has it by a
                grant further up and lacks DESCRIBE.
            Absent: the caller does not know of the entry.
        """
        relative = path.below(self.mount)
        place = EntryPlace(relative, kind is Kind.TOPIC and bool(relative))
        question = AccessQuestion.for_operation(operation, resource)
        decision = self.decide(question, place)
        write_audit_line(self.caller, question, path, decision)
        if decision.allowed and (
            operation is Operation.ALTER or self.access.has_own_grant(self.caller, question, place)
        ):
            return
        if resource is ResourceType.TOPIC and not self.can_describe(
            relative, is_topic=place.is_topic
        ):
            if not any(
                self.access.has_own_grant(self.caller, one, place)
                and self.decide(one, place).allowed
                for one in _ANY_OPERATION
            ):
                raise self.absent_error(path, kind)
            if decision.allowed:
                raise self.permission_denied_error(
                    Operation.DESCRIBE, path, self.decide(_DESCRIBE, place)
                )
        if not decision.allowed:
            raise self.permission_denied_error(operation, path, decision, resource)

    def require_cluster(self, operation: Operation, purpose: str = "") -> None:
        """Checks that the caller has a right on the cluster. ``purpose`` is the subject of the
        error's sentence, where the request itself is about an entry.

        Raises:
            PermissionDenied: the caller lacks the right.
        """
        try:
            self.require_operation(operation, self.mount, resource=ResourceType.CLUSTER)
        except PermissionDenied as refused:
            if not purpose:
                raise
            raise PermissionDenied(
                f"{purpose} needs {operation.name} on cluster {self.cluster}: {refused.message}",
                metadata=refused.metadata,
            ) from None

    def permission_denied_error(
        self,
        operation: Operation,
        path: Path,
        decision: Decision,
        resource: ResourceType = ResourceType.TOPIC,
    ) -> PermissionDenied:
        """Returns the error for a missing right, with the reason if the caller may learn it."""
        why = (
            decision.reason.value
            if decision.reason is not DecisionReason.GRANT
            else "a grant denies it"
        )
        kind = " --cluster" if resource is ResourceType.CLUSTER else ""
        return PermissionDenied(
            f"{self.caller.principal} may not {operation.name} {path}: {why}; "
            f"kdir check {self.caller.principal} {operation.name.lower()} {path}{kind} --explain",
            path=path,
            operation=operation.name,
            principal=self.caller.principal,
        )

    def require_view(self, path: Path, kind: Kind | None) -> None:
        """Checks that the caller may describe an entry that it knows of and, of a directory,
        everything below it.

        Raises:
            PermissionDenied: it may not describe all of that.
        """
        relative = path.below(self.mount)
        place = EntryPlace(relative, kind is Kind.TOPIC and bool(relative))
        decision = self.decide(_DESCRIBE, place)
        if not decision.allowed:
            raise self.permission_denied_error(Operation.DESCRIBE, path, decision)
        if kind is Kind.DIRECTORY:
            self.require_on_descendants(Operation.DESCRIBE, path)

    def require_on_descendants(self, operation: Operation, path: Path) -> None:
        """Checks that the caller has a right on everything below a directory.

        Raises:
            PermissionDenied: names the entry on which the right is missing, if the caller may see
                it.
        """
        question = AccessQuestion.for_operation(operation)
        refusals = self.access.denied_below(
            self.caller,
            question,
            EntryPlace(path.below(self.mount)),
            age_seconds=self.age_seconds,
        )
        for place, decision in refusals:
            at = self.mount.join(place.relative)
            write_audit_line(self.caller, question, at, decision)
            if self.can_describe(place.relative, is_topic=place.is_topic):
                raise self.permission_denied_error(operation, at, decision)
            raise PermissionDenied(
                f"{self.caller.principal} may not {operation.name} all that lies below {path}",
                path=path,
                operation=operation.name,
                principal=self.caller.principal,
            )
