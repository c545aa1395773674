from kdir.v1 import access_pb2 as _access_pb2
from kdir.v1 import policies_pb2 as _policies_pb2
from kdir.v1 import resolve_pb2 as _resolve_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LinkRequest(_message.Message):
    __slots__ = ("hello", "mounts_below", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_BELOW_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    mounts_below: MountTable
    heartbeat: Heartbeat
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., mounts_below: _Optional[_Union[MountTable, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class LinkResponse(_message.Message):
    __slots__ = ("welcome", "mount_table", "inherited", "heartbeat", "remounted", "unmounted", "unconfirmed_seconds")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    MOUNT_TABLE_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    REMOUNTED_FIELD_NUMBER: _ClassVar[int]
    UNMOUNTED_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    mount_table: MountTable
    inherited: Inherited
    heartbeat: Heartbeat
    remounted: Welcome
    unmounted: Unmounted
    unconfirmed_seconds: float
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., mount_table: _Optional[_Union[MountTable, _Mapping]] = ..., inherited: _Optional[_Union[Inherited, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., remounted: _Optional[_Union[Welcome, _Mapping]] = ..., unmounted: _Optional[_Union[Unmounted, _Mapping]] = ..., unconfirmed_seconds: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("cluster_id", "cluster", "mount", "epoch", "endpoints", "feature_level", "incarnation", "topic_count", "kafka", "link_group", "heartbeat_seconds")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    LINK_GROUP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    cluster: str
    mount: str
    epoch: int
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    feature_level: int
    incarnation: str
    topic_count: int
    kafka: KafkaClaim
    link_group: str
    heartbeat_seconds: float
    def __init__(self, cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., mount: _Optional[str] = ..., epoch: _Optional[int] = ..., endpoints: _Optional[_Iterable[str]] = ..., feature_level: _Optional[int] = ..., incarnation: _Optional[str] = ..., topic_count: _Optional[int] = ..., kafka: _Optional[_Union[KafkaClaim, _Mapping]] = ..., link_group: _Optional[str] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class KafkaClaim(_message.Message):
    __slots__ = ("kafka_cluster_id", "pinned_at_ms", "cluster_id", "cluster", "mount")
    KAFKA_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PINNED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    kafka_cluster_id: str
    pinned_at_ms: int
    cluster_id: str
    cluster: str
    mount: str
    def __init__(self, kafka_cluster_id: _Optional[str] = ..., pinned_at_ms: _Optional[int] = ..., cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., mount: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("mount", "epoch", "parent_cluster_id", "parent_cluster", "parent_mount", "ancestor_cluster_ids", "parent_endpoints", "incarnation", "revision", "kafka_above", "link_group", "heartbeat_seconds")
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARENT_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PARENT_MOUNT_FIELD_NUMBER: _ClassVar[int]
    ANCESTOR_CLUSTER_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENT_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KAFKA_ABOVE_FIELD_NUMBER: _ClassVar[int]
    LINK_GROUP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    mount: str
    epoch: int
    parent_cluster_id: str
    parent_cluster: str
    parent_mount: str
    ancestor_cluster_ids: _containers.RepeatedScalarFieldContainer[str]
    parent_endpoints: _containers.RepeatedScalarFieldContainer[str]
    incarnation: str
    revision: int
    kafka_above: _containers.RepeatedCompositeFieldContainer[KafkaClaim]
    link_group: str
    heartbeat_seconds: float
    def __init__(self, mount: _Optional[str] = ..., epoch: _Optional[int] = ..., parent_cluster_id: _Optional[str] = ..., parent_cluster: _Optional[str] = ..., parent_mount: _Optional[str] = ..., ancestor_cluster_ids: _Optional[_Iterable[str]] = ..., parent_endpoints: _Optional[_Iterable[str]] = ..., incarnation: _Optional[str] = ..., revision: _Optional[int] = ..., kafka_above: _Optional[_Iterable[_Union[KafkaClaim, _Mapping]]] = ..., link_group: _Optional[str] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("topic_count", "endpoints", "revision")
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    topic_count: int
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    def __init__(self, topic_count: _Optional[int] = ..., endpoints: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ...) -> None: ...

class MountTable(_message.Message):
    __slots__ = ("rows", "is_change", "removed", "has_more")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    IS_CHANGE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[MountRow]
    is_change: bool
    removed: _containers.RepeatedScalarFieldContainer[str]
    has_more: bool
    def __init__(self, rows: _Optional[_Iterable[_Union[MountRow, _Mapping]]] = ..., is_change: _Optional[bool] = ..., removed: _Optional[_Iterable[str]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class MountRow(_message.Message):
    __slots__ = ("mount", "cluster_id", "cluster", "epoch", "endpoints", "age_seconds", "topic_count", "linked", "feature_level", "kafka", "confirmed", "link_unknown")
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    KAFKA_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    LINK_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    mount: str
    cluster_id: str
    cluster: str
    epoch: int
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    age_seconds: float
    topic_count: int
    linked: bool
    feature_level: int
    kafka: KafkaClaim
    confirmed: bool
    link_unknown: bool
    def __init__(self, mount: _Optional[str] = ..., cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., epoch: _Optional[int] = ..., endpoints: _Optional[_Iterable[str]] = ..., age_seconds: _Optional[float] = ..., topic_count: _Optional[int] = ..., linked: _Optional[bool] = ..., feature_level: _Optional[int] = ..., kafka: _Optional[_Union[KafkaClaim, _Mapping]] = ..., confirmed: _Optional[bool] = ..., link_unknown: _Optional[bool] = ...) -> None: ...

class Inherited(_message.Message):
    __slots__ = ("levels", "revision", "incarnation", "ancestors", "basis", "mount", "epoch")
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ANCESTORS_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    levels: _containers.RepeatedCompositeFieldContainer[InheritedLevel]
    revision: int
    incarnation: str
    ancestors: _containers.RepeatedCompositeFieldContainer[_policies_pb2.AncestorPosition]
    basis: str
    mount: str
    epoch: int
    def __init__(self, levels: _Optional[_Iterable[_Union[InheritedLevel, _Mapping]]] = ..., revision: _Optional[int] = ..., incarnation: _Optional[str] = ..., ancestors: _Optional[_Iterable[_Union[_policies_pb2.AncestorPosition, _Mapping]]] = ..., basis: _Optional[str] = ..., mount: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class InheritedLevel(_message.Message):
    __slots__ = ("path", "policies", "grants", "changed_by", "closed")
    PATH_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BY_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    path: str
    policies: _policies_pb2.Policies
    grants: _containers.RepeatedCompositeFieldContainer[_access_pb2.Grant]
    changed_by: str
    closed: bool
    def __init__(self, path: _Optional[str] = ..., policies: _Optional[_Union[_policies_pb2.Policies, _Mapping]] = ..., grants: _Optional[_Iterable[_Union[_access_pb2.Grant, _Mapping]]] = ..., changed_by: _Optional[str] = ..., closed: _Optional[bool] = ...) -> None: ...

class Unmounted(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class ListMountsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMountsResponse(_message.Message):
    __slots__ = ("rows", "pending_children", "incomplete_cluster_ids", "authorities")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PENDING_CHILDREN_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_CLUSTER_IDS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[MountRow]
    pending_children: _containers.RepeatedCompositeFieldContainer[PendingChild]
    incomplete_cluster_ids: _containers.RepeatedScalarFieldContainer[str]
    authorities: _containers.RepeatedCompositeFieldContainer[_resolve_pb2.Authority]
    def __init__(self, rows: _Optional[_Iterable[_Union[MountRow, _Mapping]]] = ..., pending_children: _Optional[_Iterable[_Union[PendingChild, _Mapping]]] = ..., incomplete_cluster_ids: _Optional[_Iterable[str]] = ..., authorities: _Optional[_Iterable[_Union[_resolve_pb2.Authority, _Mapping]]] = ...) -> None: ...

class PendingChild(_message.Message):
    __slots__ = ("cluster_id", "cluster", "mount", "endpoints", "age_seconds", "message")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    cluster: str
    mount: str
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    age_seconds: float
    message: str
    def __init__(self, cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., mount: _Optional[str] = ..., endpoints: _Optional[_Iterable[str]] = ..., age_seconds: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...
