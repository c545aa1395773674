import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kdir.v1 import entry_pb2 as _entry_pb2
from kdir.v1 import policies_pb2 as _policies_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    OPERATION_ALL: _ClassVar[Operation]
    OPERATION_READ: _ClassVar[Operation]
    OPERATION_WRITE: _ClassVar[Operation]
    OPERATION_CREATE: _ClassVar[Operation]
    OPERATION_DELETE: _ClassVar[Operation]
    OPERATION_ALTER: _ClassVar[Operation]
    OPERATION_DESCRIBE: _ClassVar[Operation]
    OPERATION_DESCRIBE_CONFIGS: _ClassVar[Operation]
    OPERATION_ALTER_CONFIGS: _ClassVar[Operation]
    OPERATION_CLUSTER_ACTION: _ClassVar[Operation]
    OPERATION_IDEMPOTENT_WRITE: _ClassVar[Operation]
    OPERATION_CREATE_TOKENS: _ClassVar[Operation]
    OPERATION_DESCRIBE_TOKENS: _ClassVar[Operation]
    OPERATION_TWO_PHASE_COMMIT: _ClassVar[Operation]

class ResourceType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_TYPE_UNSPECIFIED: _ClassVar[ResourceType]
    RESOURCE_TYPE_TOPIC: _ClassVar[ResourceType]
    RESOURCE_TYPE_GROUP: _ClassVar[ResourceType]
    RESOURCE_TYPE_TRANSACTIONAL_ID: _ClassVar[ResourceType]
    RESOURCE_TYPE_CLUSTER: _ClassVar[ResourceType]

class Permission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PERMISSION_UNSPECIFIED: _ClassVar[Permission]
    PERMISSION_DENY: _ClassVar[Permission]
    PERMISSION_ALLOW: _ClassVar[Permission]
OPERATION_UNSPECIFIED: Operation
OPERATION_ALL: Operation
OPERATION_READ: Operation
OPERATION_WRITE: Operation
OPERATION_CREATE: Operation
OPERATION_DELETE: Operation
OPERATION_ALTER: Operation
OPERATION_DESCRIBE: Operation
OPERATION_DESCRIBE_CONFIGS: Operation
OPERATION_ALTER_CONFIGS: Operation
OPERATION_CLUSTER_ACTION: Operation
OPERATION_IDEMPOTENT_WRITE: Operation
OPERATION_CREATE_TOKENS: Operation
OPERATION_DESCRIBE_TOKENS: Operation
OPERATION_TWO_PHASE_COMMIT: Operation
RESOURCE_TYPE_UNSPECIFIED: ResourceType
RESOURCE_TYPE_TOPIC: ResourceType
RESOURCE_TYPE_GROUP: ResourceType
RESOURCE_TYPE_TRANSACTIONAL_ID: ResourceType
RESOURCE_TYPE_CLUSTER: ResourceType
PERMISSION_UNSPECIFIED: Permission
PERMISSION_DENY: Permission
PERMISSION_ALLOW: Permission

class Grant(_message.Message):
    __slots__ = ("principal", "host", "operation", "permission", "resource_type", "resource_name")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    operation: Operation
    permission: Permission
    resource_type: ResourceType
    resource_name: str
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., permission: _Optional[_Union[Permission, str]] = ..., resource_type: _Optional[_Union[ResourceType, str]] = ..., resource_name: _Optional[str] = ...) -> None: ...

class Grants(_message.Message):
    __slots__ = ("grants", "change_count", "changed_at", "changed_by")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BY_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    change_count: int
    changed_at: _timestamp_pb2.Timestamp
    changed_by: str
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., change_count: _Optional[int] = ..., changed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., changed_by: _Optional[str] = ...) -> None: ...

class AddGrantsRequest(_message.Message):
    __slots__ = ("path", "grants", "request_id", "kind", "validate_only", "token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    request_id: str
    kind: _entry_pb2.EntryKind
    validate_only: bool
    token: str
    def __init__(self, path: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., request_id: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., validate_only: _Optional[bool] = ..., token: _Optional[str] = ...) -> None: ...

class AddGrantsResponse(_message.Message):
    __slots__ = ("token", "grants", "added", "topic_count", "plan")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    token: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    added: _containers.RepeatedCompositeFieldContainer[Grant]
    topic_count: int
    plan: ChangePlan
    def __init__(self, token: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., added: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., topic_count: _Optional[int] = ..., plan: _Optional[_Union[ChangePlan, _Mapping]] = ...) -> None: ...

class RemoveGrantsRequest(_message.Message):
    __slots__ = ("path", "grants", "request_id", "kind", "validate_only", "token", "inherited_from")
    PATH_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FROM_FIELD_NUMBER: _ClassVar[int]
    path: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    request_id: str
    kind: _entry_pb2.EntryKind
    validate_only: bool
    token: str
    inherited_from: str
    def __init__(self, path: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., request_id: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., validate_only: _Optional[bool] = ..., token: _Optional[str] = ..., inherited_from: _Optional[str] = ...) -> None: ...

class RemoveGrantsResponse(_message.Message):
    __slots__ = ("token", "grants", "removed", "topic_count", "plan")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    token: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    removed: _containers.RepeatedCompositeFieldContainer[Grant]
    topic_count: int
    plan: ChangePlan
    def __init__(self, token: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., removed: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., topic_count: _Optional[int] = ..., plan: _Optional[_Union[ChangePlan, _Mapping]] = ...) -> None: ...

class ListGrantsRequest(_message.Message):
    __slots__ = ("path", "kind", "token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: _entry_pb2.EntryKind
    token: str
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., token: _Optional[str] = ...) -> None: ...

class ListGrantsResponse(_message.Message):
    __slots__ = ("grants", "token")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    token: str
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., token: _Optional[str] = ...) -> None: ...

class CheckAccessRequest(_message.Message):
    __slots__ = ("principal", "host", "operation", "path", "token", "resource_type", "resource_name", "kind", "explain")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    operation: Operation
    path: str
    token: str
    resource_type: ResourceType
    resource_name: str
    kind: _entry_pb2.EntryKind
    explain: bool
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., path: _Optional[str] = ..., token: _Optional[str] = ..., resource_type: _Optional[_Union[ResourceType, str]] = ..., resource_name: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., explain: _Optional[bool] = ...) -> None: ...

class CheckAccessResponse(_message.Message):
    __slots__ = ("allowed", "deciding_grant", "deciding_path", "message", "implied_by", "levels", "token")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    DECIDING_GRANT_FIELD_NUMBER: _ClassVar[int]
    DECIDING_PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IMPLIED_BY_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    deciding_grant: Grant
    deciding_path: str
    message: str
    implied_by: Operation
    levels: _containers.RepeatedCompositeFieldContainer[EvaluatedLevel]
    token: str
    def __init__(self, allowed: _Optional[bool] = ..., deciding_grant: _Optional[_Union[Grant, _Mapping]] = ..., deciding_path: _Optional[str] = ..., message: _Optional[str] = ..., implied_by: _Optional[_Union[Operation, str]] = ..., levels: _Optional[_Iterable[_Union[EvaluatedLevel, _Mapping]]] = ..., token: _Optional[str] = ...) -> None: ...

class EvaluatedLevel(_message.Message):
    __slots__ = ("path", "closed", "inherited", "grants")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    path: str
    closed: bool
    inherited: bool
    grants: _containers.RepeatedCompositeFieldContainer[EvaluatedGrant]
    def __init__(self, path: _Optional[str] = ..., closed: _Optional[bool] = ..., inherited: _Optional[bool] = ..., grants: _Optional[_Iterable[_Union[EvaluatedGrant, _Mapping]]] = ...) -> None: ...

class EvaluatedGrant(_message.Message):
    __slots__ = ("grant", "decides", "message")
    GRANT_FIELD_NUMBER: _ClassVar[int]
    DECIDES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    grant: Grant
    decides: bool
    message: str
    def __init__(self, grant: _Optional[_Union[Grant, _Mapping]] = ..., decides: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class AuthorizeAnyRequest(_message.Message):
    __slots__ = ("principal", "host", "operation", "resource_type", "path", "token")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    path: str
    token: str
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., resource_type: _Optional[_Union[ResourceType, str]] = ..., path: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class AuthorizeAnyResponse(_message.Message):
    __slots__ = ("allowed", "token")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    token: str
    def __init__(self, allowed: _Optional[bool] = ..., token: _Optional[str] = ...) -> None: ...

class ChangePlan(_message.Message):
    __slots__ = ("entries", "access", "access_omitted", "policies", "kafka_calls", "kafka_calls_omitted", "quotas", "retired_names", "retired_names_omitted", "incomplete", "armed", "held_topic_count", "caller_view", "locks_out", "etag")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    KAFKA_CALLS_FIELD_NUMBER: _ClassVar[int]
    KAFKA_CALLS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    RETIRED_NAMES_FIELD_NUMBER: _ClassVar[int]
    RETIRED_NAMES_OMITTED_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    ARMED_FIELD_NUMBER: _ClassVar[int]
    HELD_TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    CALLER_VIEW_FIELD_NUMBER: _ClassVar[int]
    LOCKS_OUT_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    entries: ChangedEntries
    access: _containers.RepeatedCompositeFieldContainer[AccessChange]
    access_omitted: int
    policies: _containers.RepeatedCompositeFieldContainer[PolicyChange]
    kafka_calls: _containers.RepeatedCompositeFieldContainer[_policies_pb2.KafkaCall]
    kafka_calls_omitted: int
    quotas: _containers.RepeatedCompositeFieldContainer[ExceededQuota]
    retired_names: _containers.RepeatedScalarFieldContainer[str]
    retired_names_omitted: int
    incomplete: bool
    armed: bool
    held_topic_count: int
    caller_view: bool
    locks_out: bool
    etag: str
    def __init__(self, entries: _Optional[_Union[ChangedEntries, _Mapping]] = ..., access: _Optional[_Iterable[_Union[AccessChange, _Mapping]]] = ..., access_omitted: _Optional[int] = ..., policies: _Optional[_Iterable[_Union[PolicyChange, _Mapping]]] = ..., kafka_calls: _Optional[_Iterable[_Union[_policies_pb2.KafkaCall, _Mapping]]] = ..., kafka_calls_omitted: _Optional[int] = ..., quotas: _Optional[_Iterable[_Union[ExceededQuota, _Mapping]]] = ..., retired_names: _Optional[_Iterable[str]] = ..., retired_names_omitted: _Optional[int] = ..., incomplete: _Optional[bool] = ..., armed: _Optional[bool] = ..., held_topic_count: _Optional[int] = ..., caller_view: _Optional[bool] = ..., locks_out: _Optional[bool] = ..., etag: _Optional[str] = ...) -> None: ...

class ChangedEntries(_message.Message):
    __slots__ = ("directories", "topics", "links", "mounts", "entries_with_grants", "kafka_deleted", "kafka_detached", "kafka_missing", "kafka_replaced")
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_WITH_GRANTS_FIELD_NUMBER: _ClassVar[int]
    KAFKA_DELETED_FIELD_NUMBER: _ClassVar[int]
    KAFKA_DETACHED_FIELD_NUMBER: _ClassVar[int]
    KAFKA_MISSING_FIELD_NUMBER: _ClassVar[int]
    KAFKA_REPLACED_FIELD_NUMBER: _ClassVar[int]
    directories: int
    topics: int
    links: int
    mounts: int
    entries_with_grants: int
    kafka_deleted: int
    kafka_detached: int
    kafka_missing: int
    kafka_replaced: int
    def __init__(self, directories: _Optional[int] = ..., topics: _Optional[int] = ..., links: _Optional[int] = ..., mounts: _Optional[int] = ..., entries_with_grants: _Optional[int] = ..., kafka_deleted: _Optional[int] = ..., kafka_detached: _Optional[int] = ..., kafka_missing: _Optional[int] = ..., kafka_replaced: _Optional[int] = ...) -> None: ...

class AccessChange(_message.Message):
    __slots__ = ("principal", "host", "resource_type", "resource_name", "path", "kind", "gained", "lost")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GAINED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    resource_type: ResourceType
    resource_name: str
    path: str
    kind: _entry_pb2.EntryKind
    gained: _containers.RepeatedScalarFieldContainer[Operation]
    lost: _containers.RepeatedScalarFieldContainer[Operation]
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., resource_type: _Optional[_Union[ResourceType, str]] = ..., resource_name: _Optional[str] = ..., path: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., gained: _Optional[_Iterable[_Union[Operation, str]]] = ..., lost: _Optional[_Iterable[_Union[Operation, str]]] = ...) -> None: ...

class PolicyChange(_message.Message):
    __slots__ = ("field", "before", "after", "topic_count", "cluster_count", "deletes_data")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_COUNT_FIELD_NUMBER: _ClassVar[int]
    DELETES_DATA_FIELD_NUMBER: _ClassVar[int]
    field: str
    before: str
    after: str
    topic_count: int
    cluster_count: int
    deletes_data: bool
    def __init__(self, field: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., topic_count: _Optional[int] = ..., cluster_count: _Optional[int] = ..., deletes_data: _Optional[bool] = ...) -> None: ...

class ExceededQuota(_message.Message):
    __slots__ = ("path", "field", "limit", "used")
    PATH_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    path: str
    field: str
    limit: int
    used: int
    def __init__(self, path: _Optional[str] = ..., field: _Optional[str] = ..., limit: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...
