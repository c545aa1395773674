from kdir.v1 import entry_pb2 as _entry_pb2
from kdir.v1 import resolve_pb2 as _resolve_pb2
from kdir.v1 import watch_pb2 as _watch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_STATE_UNSPECIFIED: _ClassVar[ReplicaState]
    REPLICA_STATE_LOADING: _ClassVar[ReplicaState]
    REPLICA_STATE_SERVING: _ClassVar[ReplicaState]
    REPLICA_STATE_STALE: _ClassVar[ReplicaState]
REPLICA_STATE_UNSPECIFIED: ReplicaState
REPLICA_STATE_LOADING: ReplicaState
REPLICA_STATE_SERVING: ReplicaState
REPLICA_STATE_STALE: ReplicaState

class GetStatusRequest(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    def __init__(self, cluster: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("authority", "replica_state", "topic_count", "directory_count", "parent", "kafka", "version", "feature_level", "store", "unreadable_values", "uptime_seconds", "members", "finalized_level", "progress", "store_status", "unreadable_value_count", "principal", "change_log", "topics_unchanged_since")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_STATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_VALUES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    FINALIZED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_STATUS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_VALUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CHANGE_LOG_FIELD_NUMBER: _ClassVar[int]
    TOPICS_UNCHANGED_SINCE_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    replica_state: ReplicaState
    topic_count: int
    directory_count: int
    parent: ParentStatus
    kafka: KafkaStatus
    version: str
    feature_level: int
    store: str
    unreadable_values: _containers.RepeatedScalarFieldContainer[str]
    uptime_seconds: float
    members: _containers.RepeatedCompositeFieldContainer[Member]
    finalized_level: int
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    store_status: StoreStatus
    unreadable_value_count: int
    principal: str
    change_log: _watch_pb2.ChangeLogState
    topics_unchanged_since: int
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., replica_state: _Optional[_Union[ReplicaState, str]] = ..., topic_count: _Optional[int] = ..., directory_count: _Optional[int] = ..., parent: _Optional[_Union[ParentStatus, _Mapping]] = ..., kafka: _Optional[_Union[KafkaStatus, _Mapping]] = ..., version: _Optional[str] = ..., feature_level: _Optional[int] = ..., store: _Optional[str] = ..., unreadable_values: _Optional[_Iterable[str]] = ..., uptime_seconds: _Optional[float] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., finalized_level: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., store_status: _Optional[_Union[StoreStatus, _Mapping]] = ..., unreadable_value_count: _Optional[int] = ..., principal: _Optional[str] = ..., change_log: _Optional[_Union[_watch_pb2.ChangeLogState, _Mapping]] = ..., topics_unchanged_since: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("server", "endpoints", "feature_level", "version", "host", "pid", "started_at_ms", "roles")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    server: str
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    feature_level: int
    version: str
    host: str
    pid: int
    started_at_ms: int
    roles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, server: _Optional[str] = ..., endpoints: _Optional[_Iterable[str]] = ..., feature_level: _Optional[int] = ..., version: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., roles: _Optional[_Iterable[str]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("change_id", "kind", "path", "done", "remaining", "started_at_ms", "principal", "message")
    CHANGE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    change_id: str
    kind: str
    path: str
    done: int
    remaining: int
    started_at_ms: int
    principal: str
    message: str
    def __init__(self, change_id: _Optional[str] = ..., kind: _Optional[str] = ..., path: _Optional[str] = ..., done: _Optional[int] = ..., remaining: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., principal: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ResyncChangeLogRequest(_message.Message):
    __slots__ = ("cluster", "token")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    token: str
    def __init__(self, cluster: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class ResyncChangeLogResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class SkipChangeLogRequest(_message.Message):
    __slots__ = ("cluster", "token", "revision")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    token: str
    revision: int
    def __init__(self, cluster: _Optional[str] = ..., token: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class SkipChangeLogResponse(_message.Message):
    __slots__ = ("token", "commits")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    token: str
    commits: int
    def __init__(self, token: _Optional[str] = ..., commits: _Optional[int] = ...) -> None: ...

class EndChangeLogRequest(_message.Message):
    __slots__ = ("cluster", "token")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    token: str
    def __init__(self, cluster: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class EndChangeLogResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class LargeChange(_message.Message):
    __slots__ = ("progress", "rules", "remap_adopted")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    REMAP_ADOPTED_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    rules: _containers.RepeatedCompositeFieldContainer[MappingRule]
    remap_adopted: bool
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., rules: _Optional[_Iterable[_Union[MappingRule, _Mapping]]] = ..., remap_adopted: _Optional[bool] = ...) -> None: ...

class StoreStatus(_message.Message):
    __slots__ = ("revision", "age_seconds", "message", "watch_restarts", "reloads", "sealed", "last_commit_seconds", "full", "full_age_seconds")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WATCH_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    RELOADS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    FULL_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    age_seconds: float
    message: str
    watch_restarts: int
    reloads: int
    sealed: str
    last_commit_seconds: float
    full: str
    full_age_seconds: float
    def __init__(self, revision: _Optional[int] = ..., age_seconds: _Optional[float] = ..., message: _Optional[str] = ..., watch_restarts: _Optional[int] = ..., reloads: _Optional[int] = ..., sealed: _Optional[str] = ..., last_commit_seconds: _Optional[float] = ..., full: _Optional[str] = ..., full_age_seconds: _Optional[float] = ...) -> None: ...

class ParentStatus(_message.Message):
    __slots__ = ("configured", "linked", "message", "cluster_id", "last_contact_age_seconds", "unmounted", "standby", "detached_reason", "inherited_missing_reason")
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_CONTACT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNMOUNTED_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    DETACHED_REASON_FIELD_NUMBER: _ClassVar[int]
    INHERITED_MISSING_REASON_FIELD_NUMBER: _ClassVar[int]
    configured: bool
    linked: bool
    message: str
    cluster_id: str
    last_contact_age_seconds: float
    unmounted: bool
    standby: bool
    detached_reason: str
    inherited_missing_reason: str
    def __init__(self, configured: _Optional[bool] = ..., linked: _Optional[bool] = ..., message: _Optional[str] = ..., cluster_id: _Optional[str] = ..., last_contact_age_seconds: _Optional[float] = ..., unmounted: _Optional[bool] = ..., standby: _Optional[bool] = ..., detached_reason: _Optional[str] = ..., inherited_missing_reason: _Optional[str] = ...) -> None: ...

class KafkaStatus(_message.Message):
    __slots__ = ("pinned_cluster_id", "seen_cluster_id", "reachable", "message", "last_sweep_seconds", "ceiling", "stop_reason", "pending_count", "missing_count", "drift_count", "leader", "needs_approval_count", "contested_count", "acl_count", "acl_resources_needing_approval_count", "acl_resources_rejected_count", "acls_removed_externally_count", "replaced_count", "unmanaged")
    PINNED_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SEEN_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_SWEEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CEILING_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSING_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRIFT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    NEEDS_APPROVAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTESTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACL_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACL_RESOURCES_NEEDING_APPROVAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACL_RESOURCES_REJECTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACLS_REMOVED_EXTERNALLY_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLACED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNMANAGED_FIELD_NUMBER: _ClassVar[int]
    pinned_cluster_id: str
    seen_cluster_id: str
    reachable: bool
    message: str
    last_sweep_seconds: float
    ceiling: _containers.RepeatedScalarFieldContainer[str]
    stop_reason: str
    pending_count: int
    missing_count: int
    drift_count: int
    leader: bool
    needs_approval_count: int
    contested_count: int
    acl_count: int
    acl_resources_needing_approval_count: int
    acl_resources_rejected_count: int
    acls_removed_externally_count: int
    replaced_count: int
    unmanaged: str
    def __init__(self, pinned_cluster_id: _Optional[str] = ..., seen_cluster_id: _Optional[str] = ..., reachable: _Optional[bool] = ..., message: _Optional[str] = ..., last_sweep_seconds: _Optional[float] = ..., ceiling: _Optional[_Iterable[str]] = ..., stop_reason: _Optional[str] = ..., pending_count: _Optional[int] = ..., missing_count: _Optional[int] = ..., drift_count: _Optional[int] = ..., leader: _Optional[bool] = ..., needs_approval_count: _Optional[int] = ..., contested_count: _Optional[int] = ..., acl_count: _Optional[int] = ..., acl_resources_needing_approval_count: _Optional[int] = ..., acl_resources_rejected_count: _Optional[int] = ..., acls_removed_externally_count: _Optional[int] = ..., replaced_count: _Optional[int] = ..., unmanaged: _Optional[str] = ...) -> None: ...

class MappingRule(_message.Message):
    __slots__ = ("match", "split_on", "into", "strip_prefix", "ignore")
    MATCH_FIELD_NUMBER: _ClassVar[int]
    SPLIT_ON_FIELD_NUMBER: _ClassVar[int]
    INTO_FIELD_NUMBER: _ClassVar[int]
    STRIP_PREFIX_FIELD_NUMBER: _ClassVar[int]
    IGNORE_FIELD_NUMBER: _ClassVar[int]
    match: str
    split_on: str
    into: str
    strip_prefix: str
    ignore: bool
    def __init__(self, match: _Optional[str] = ..., split_on: _Optional[str] = ..., into: _Optional[str] = ..., strip_prefix: _Optional[str] = ..., ignore: _Optional[bool] = ...) -> None: ...

class AdoptTopicsRequest(_message.Message):
    __slots__ = ("rules", "validate_only", "remap_adopted", "request_id", "cluster", "token")
    RULES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REMAP_ADOPTED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[MappingRule]
    validate_only: bool
    remap_adopted: bool
    request_id: str
    cluster: str
    token: str
    def __init__(self, rules: _Optional[_Iterable[_Union[MappingRule, _Mapping]]] = ..., validate_only: _Optional[bool] = ..., remap_adopted: _Optional[bool] = ..., request_id: _Optional[str] = ..., cluster: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class Adoption(_message.Message):
    __slots__ = ("physical_name", "path", "rule", "action", "message")
    PHYSICAL_NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    physical_name: str
    path: str
    rule: int
    action: str
    message: str
    def __init__(self, physical_name: _Optional[str] = ..., path: _Optional[str] = ..., rule: _Optional[int] = ..., action: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class AdoptTopicsResponse(_message.Message):
    __slots__ = ("adoptions", "token", "progress", "omitted_count")
    ADOPTIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OMITTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    adoptions: _containers.RepeatedCompositeFieldContainer[Adoption]
    token: str
    progress: Progress
    omitted_count: int
    def __init__(self, adoptions: _Optional[_Iterable[_Union[Adoption, _Mapping]]] = ..., token: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., omitted_count: _Optional[int] = ...) -> None: ...

class ListDriftRequest(_message.Message):
    __slots__ = ("path", "unarmed")
    PATH_FIELD_NUMBER: _ClassVar[int]
    UNARMED_FIELD_NUMBER: _ClassVar[int]
    path: str
    unarmed: bool
    def __init__(self, path: _Optional[str] = ..., unarmed: _Optional[bool] = ...) -> None: ...

class ListDriftResponse(_message.Message):
    __slots__ = ("drifts", "omitted_count")
    DRIFTS_FIELD_NUMBER: _ClassVar[int]
    OMITTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    drifts: _containers.RepeatedCompositeFieldContainer[Drift]
    omitted_count: int
    def __init__(self, drifts: _Optional[_Iterable[_Union[Drift, _Mapping]]] = ..., omitted_count: _Optional[int] = ...) -> None: ...

class Drift(_message.Message):
    __slots__ = ("path", "physical_name", "field", "expected", "actual", "provision", "kafka_state")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_NAME_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    PROVISION_FIELD_NUMBER: _ClassVar[int]
    KAFKA_STATE_FIELD_NUMBER: _ClassVar[int]
    path: str
    physical_name: str
    field: str
    expected: str
    actual: str
    provision: _entry_pb2.Provision
    kafka_state: str
    def __init__(self, path: _Optional[str] = ..., physical_name: _Optional[str] = ..., field: _Optional[str] = ..., expected: _Optional[str] = ..., actual: _Optional[str] = ..., provision: _Optional[_Union[_entry_pb2.Provision, str]] = ..., kafka_state: _Optional[str] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("stop_reason", "request_id", "cluster", "token")
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    stop_reason: str
    request_id: str
    cluster: str
    token: str
    def __init__(self, stop_reason: _Optional[str] = ..., request_id: _Optional[str] = ..., cluster: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class FinalizeFeaturesRequest(_message.Message):
    __slots__ = ("level", "validate_only", "request_id", "cluster", "token")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    level: int
    validate_only: bool
    request_id: str
    cluster: str
    token: str
    def __init__(self, level: _Optional[int] = ..., validate_only: _Optional[bool] = ..., request_id: _Optional[str] = ..., cluster: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class FinalizeFeaturesResponse(_message.Message):
    __slots__ = ("finalized_level", "supported_level", "members", "token")
    FINALIZED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    finalized_level: int
    supported_level: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    token: str
    def __init__(self, finalized_level: _Optional[int] = ..., supported_level: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., token: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("cluster", "skip_kafka")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SKIP_KAFKA_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    skip_kafka: bool
    def __init__(self, cluster: _Optional[str] = ..., skip_kafka: _Optional[bool] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("difference", "summary")
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    difference: Difference
    summary: VerifySummary
    def __init__(self, difference: _Optional[_Union[Difference, _Mapping]] = ..., summary: _Optional[_Union[VerifySummary, _Mapping]] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("compared", "path_or_key", "field", "expected", "actual", "advice")
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    PATH_OR_KEY_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    compared: str
    path_or_key: str
    field: str
    expected: str
    actual: str
    advice: str
    def __init__(self, compared: _Optional[str] = ..., path_or_key: _Optional[str] = ..., field: _Optional[str] = ..., expected: _Optional[str] = ..., actual: _Optional[str] = ..., advice: _Optional[str] = ...) -> None: ...

class VerifySummary(_message.Message):
    __slots__ = ("revision", "rows", "kafka_topics", "differences", "message")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    KAFKA_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    rows: int
    kafka_topics: int
    differences: int
    message: str
    def __init__(self, revision: _Optional[int] = ..., rows: _Optional[int] = ..., kafka_topics: _Optional[int] = ..., differences: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    def __init__(self, cluster: _Optional[str] = ...) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("header", "rows", "trailer")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TRAILER_FIELD_NUMBER: _ClassVar[int]
    header: BackupHeader
    rows: BackupRows
    trailer: BackupTrailer
    def __init__(self, header: _Optional[_Union[BackupHeader, _Mapping]] = ..., rows: _Optional[_Union[BackupRows, _Mapping]] = ..., trailer: _Optional[_Union[BackupTrailer, _Mapping]] = ...) -> None: ...

class BackupHeader(_message.Message):
    __slots__ = ("format", "cluster_id", "cluster", "incarnation", "revision", "schema_version", "taken_at_ms", "finalized_level")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FINALIZED_LEVEL_FIELD_NUMBER: _ClassVar[int]
    format: int
    cluster_id: str
    cluster: str
    incarnation: str
    revision: int
    schema_version: int
    taken_at_ms: int
    finalized_level: int
    def __init__(self, format: _Optional[int] = ..., cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., incarnation: _Optional[str] = ..., revision: _Optional[int] = ..., schema_version: _Optional[int] = ..., taken_at_ms: _Optional[int] = ..., finalized_level: _Optional[int] = ...) -> None: ...

class BackupRows(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[BackupRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[BackupRow, _Mapping]]] = ...) -> None: ...

class BackupRow(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class BackupTrailer(_message.Message):
    __slots__ = ("rows", "sha256")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    rows: int
    sha256: bytes
    def __init__(self, rows: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class DetachParentRequest(_message.Message):
    __slots__ = ("cluster", "keep_inherited", "token")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    KEEP_INHERITED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    keep_inherited: bool
    token: str
    def __init__(self, cluster: _Optional[str] = ..., keep_inherited: _Optional[bool] = ..., token: _Optional[str] = ...) -> None: ...

class DetachParentResponse(_message.Message):
    __slots__ = ("token", "kept")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    token: str
    kept: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token: _Optional[str] = ..., kept: _Optional[_Iterable[str]] = ...) -> None: ...

class AttachParentRequest(_message.Message):
    __slots__ = ("cluster", "token")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    token: str
    def __init__(self, cluster: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class AttachParentResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...
