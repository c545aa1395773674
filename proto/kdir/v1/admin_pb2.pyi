from kdir.v1 import entry_pb2 as _entry_pb2
from kdir.v1 import resolve_pb2 as _resolve_pb2
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
    __slots__ = ("authority", "replica_state", "topic_count", "directory_count", "parent", "kafka", "version", "feature_level", "store", "quarantined", "uptime_seconds")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    REPLICA_STATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    replica_state: ReplicaState
    topic_count: int
    directory_count: int
    parent: ParentStatus
    kafka: KafkaStatus
    version: str
    feature_level: int
    store: str
    quarantined: _containers.RepeatedScalarFieldContainer[str]
    uptime_seconds: float
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., replica_state: _Optional[_Union[ReplicaState, str]] = ..., topic_count: _Optional[int] = ..., directory_count: _Optional[int] = ..., parent: _Optional[_Union[ParentStatus, _Mapping]] = ..., kafka: _Optional[_Union[KafkaStatus, _Mapping]] = ..., version: _Optional[str] = ..., feature_level: _Optional[int] = ..., store: _Optional[str] = ..., quarantined: _Optional[_Iterable[str]] = ..., uptime_seconds: _Optional[float] = ...) -> None: ...

class ParentStatus(_message.Message):
    __slots__ = ("configured", "linked", "message", "cluster_id", "last_heard_seconds", "unmounted", "standby")
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNMOUNTED_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    configured: bool
    linked: bool
    message: str
    cluster_id: str
    last_heard_seconds: float
    unmounted: bool
    standby: bool
    def __init__(self, configured: _Optional[bool] = ..., linked: _Optional[bool] = ..., message: _Optional[str] = ..., cluster_id: _Optional[str] = ..., last_heard_seconds: _Optional[float] = ..., unmounted: _Optional[bool] = ..., standby: _Optional[bool] = ...) -> None: ...

class KafkaStatus(_message.Message):
    __slots__ = ("pinned_cluster_id", "seen_cluster_id", "reachable", "message", "last_sweep_seconds", "ceiling", "stopped", "pending_count", "missing_count", "drift_count", "leader")
    PINNED_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SEEN_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_SWEEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CEILING_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSING_COUNT_FIELD_NUMBER: _ClassVar[int]
    DRIFT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    pinned_cluster_id: str
    seen_cluster_id: str
    reachable: bool
    message: str
    last_sweep_seconds: float
    ceiling: _containers.RepeatedScalarFieldContainer[str]
    stopped: str
    pending_count: int
    missing_count: int
    drift_count: int
    leader: bool
    def __init__(self, pinned_cluster_id: _Optional[str] = ..., seen_cluster_id: _Optional[str] = ..., reachable: _Optional[bool] = ..., message: _Optional[str] = ..., last_sweep_seconds: _Optional[float] = ..., ceiling: _Optional[_Iterable[str]] = ..., stopped: _Optional[str] = ..., pending_count: _Optional[int] = ..., missing_count: _Optional[int] = ..., drift_count: _Optional[int] = ..., leader: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("rules", "plan_only", "remap_adopted", "request_id", "cluster")
    RULES_FIELD_NUMBER: _ClassVar[int]
    PLAN_ONLY_FIELD_NUMBER: _ClassVar[int]
    REMAP_ADOPTED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[MappingRule]
    plan_only: bool
    remap_adopted: bool
    request_id: str
    cluster: str
    def __init__(self, rules: _Optional[_Iterable[_Union[MappingRule, _Mapping]]] = ..., plan_only: _Optional[bool] = ..., remap_adopted: _Optional[bool] = ..., request_id: _Optional[str] = ..., cluster: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("adoptions", "token")
    ADOPTIONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    adoptions: _containers.RepeatedCompositeFieldContainer[Adoption]
    token: str
    def __init__(self, adoptions: _Optional[_Iterable[_Union[Adoption, _Mapping]]] = ..., token: _Optional[str] = ...) -> None: ...

class ListDriftRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class ListDriftResponse(_message.Message):
    __slots__ = ("drifts",)
    DRIFTS_FIELD_NUMBER: _ClassVar[int]
    drifts: _containers.RepeatedCompositeFieldContainer[Drift]
    def __init__(self, drifts: _Optional[_Iterable[_Union[Drift, _Mapping]]] = ...) -> None: ...

class Drift(_message.Message):
    __slots__ = ("path", "physical_name", "field", "wanted", "found", "provision")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_NAME_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    PROVISION_FIELD_NUMBER: _ClassVar[int]
    path: str
    physical_name: str
    field: str
    wanted: str
    found: str
    provision: _entry_pb2.Provision
    def __init__(self, path: _Optional[str] = ..., physical_name: _Optional[str] = ..., field: _Optional[str] = ..., wanted: _Optional[str] = ..., found: _Optional[str] = ..., provision: _Optional[_Union[_entry_pb2.Provision, str]] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("stopped", "request_id", "cluster")
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    stopped: str
    request_id: str
    cluster: str
    def __init__(self, stopped: _Optional[str] = ..., request_id: _Optional[str] = ..., cluster: _Optional[str] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...
