import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kdir.v1 import policies_pb2 as _policies_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_KIND_UNSPECIFIED: _ClassVar[EntryKind]
    ENTRY_KIND_DIRECTORY: _ClassVar[EntryKind]
    ENTRY_KIND_TOPIC: _ClassVar[EntryKind]
    ENTRY_KIND_LINK: _ClassVar[EntryKind]
    ENTRY_KIND_MOUNT: _ClassVar[EntryKind]

class Provision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVISION_UNSPECIFIED: _ClassVar[Provision]
    PROVISION_ACTIVE: _ClassVar[Provision]
    PROVISION_PENDING: _ClassVar[Provision]
    PROVISION_FAILED: _ClassVar[Provision]
    PROVISION_MISSING: _ClassVar[Provision]
    PROVISION_REPLACED: _ClassVar[Provision]
    PROVISION_DETACHED: _ClassVar[Provision]
    PROVISION_DELETING: _ClassVar[Provision]

class LinkMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LINK_MODE_UNSPECIFIED: _ClassVar[LinkMode]
    LINK_MODE_FIRST: _ClassVar[LinkMode]
    LINK_MODE_UNION: _ClassVar[LinkMode]

class LinkWrites(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LINK_WRITES_UNSPECIFIED: _ClassVar[LinkWrites]
    LINK_WRITES_STAY: _ClassVar[LinkWrites]
    LINK_WRITES_FOLLOW: _ClassVar[LinkWrites]

class MountState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOUNT_STATE_UNSPECIFIED: _ClassVar[MountState]
    MOUNT_STATE_PENDING: _ClassVar[MountState]
    MOUNT_STATE_LINKED: _ClassVar[MountState]
    MOUNT_STATE_DISCONNECTED: _ClassVar[MountState]
    MOUNT_STATE_REFUSED: _ClassVar[MountState]
ENTRY_KIND_UNSPECIFIED: EntryKind
ENTRY_KIND_DIRECTORY: EntryKind
ENTRY_KIND_TOPIC: EntryKind
ENTRY_KIND_LINK: EntryKind
ENTRY_KIND_MOUNT: EntryKind
PROVISION_UNSPECIFIED: Provision
PROVISION_ACTIVE: Provision
PROVISION_PENDING: Provision
PROVISION_FAILED: Provision
PROVISION_MISSING: Provision
PROVISION_REPLACED: Provision
PROVISION_DETACHED: Provision
PROVISION_DELETING: Provision
LINK_MODE_UNSPECIFIED: LinkMode
LINK_MODE_FIRST: LinkMode
LINK_MODE_UNION: LinkMode
LINK_WRITES_UNSPECIFIED: LinkWrites
LINK_WRITES_STAY: LinkWrites
LINK_WRITES_FOLLOW: LinkWrites
MOUNT_STATE_UNSPECIFIED: MountState
MOUNT_STATE_PENDING: MountState
MOUNT_STATE_LINKED: MountState
MOUNT_STATE_DISCONNECTED: MountState
MOUNT_STATE_REFUSED: MountState

class Entry(_message.Message):
    __slots__ = ("path", "entry_id", "etag", "directory", "topic", "link", "mount", "policies", "change_count", "changed_at", "changed_by")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    CHANGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BY_FIELD_NUMBER: _ClassVar[int]
    path: str
    entry_id: int
    etag: str
    directory: Directory
    topic: Topic
    link: Link
    mount: Mount
    policies: _policies_pb2.Policies
    change_count: int
    changed_at: _timestamp_pb2.Timestamp
    changed_by: str
    def __init__(self, path: _Optional[str] = ..., entry_id: _Optional[int] = ..., etag: _Optional[str] = ..., directory: _Optional[_Union[Directory, _Mapping]] = ..., topic: _Optional[_Union[Topic, _Mapping]] = ..., link: _Optional[_Union[Link, _Mapping]] = ..., mount: _Optional[_Union[Mount, _Mapping]] = ..., policies: _Optional[_Union[_policies_pb2.Policies, _Mapping]] = ..., change_count: _Optional[int] = ..., changed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., changed_by: _Optional[str] = ...) -> None: ...

class Directory(_message.Message):
    __slots__ = ("topic_count", "container_count", "closed", "total_topic_count", "unreadable_count")
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic_count: int
    container_count: int
    closed: bool
    total_topic_count: int
    unreadable_count: int
    def __init__(self, topic_count: _Optional[int] = ..., container_count: _Optional[int] = ..., closed: _Optional[bool] = ..., total_topic_count: _Optional[int] = ..., unreadable_count: _Optional[int] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("physical_name", "topic_id", "partitions", "replication_factor", "provision", "provision_message", "drift_count", "adopted", "provision_attempt", "observed_config")
    class ObservedConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PHYSICAL_NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    PROVISION_FIELD_NUMBER: _ClassVar[int]
    PROVISION_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DRIFT_COUNT_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    PROVISION_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_CONFIG_FIELD_NUMBER: _ClassVar[int]
    physical_name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    provision: Provision
    provision_message: str
    drift_count: int
    adopted: bool
    provision_attempt: str
    observed_config: _containers.ScalarMap[str, str]
    def __init__(self, physical_name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., provision: _Optional[_Union[Provision, str]] = ..., provision_message: _Optional[str] = ..., drift_count: _Optional[int] = ..., adopted: _Optional[bool] = ..., provision_attempt: _Optional[str] = ..., observed_config: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("targets", "mode", "writes", "fall_back_on_absent")
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    FALL_BACK_ON_ABSENT_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedScalarFieldContainer[str]
    mode: LinkMode
    writes: LinkWrites
    fall_back_on_absent: bool
    def __init__(self, targets: _Optional[_Iterable[str]] = ..., mode: _Optional[_Union[LinkMode, str]] = ..., writes: _Optional[_Union[LinkWrites, str]] = ..., fall_back_on_absent: _Optional[bool] = ...) -> None: ...

class Mount(_message.Message):
    __slots__ = ("cluster_id", "cluster", "epoch", "endpoints", "state", "last_contact_age_seconds", "topic_count", "message")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_CONTACT_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    cluster: str
    epoch: int
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    state: MountState
    last_contact_age_seconds: float
    topic_count: int
    message: str
    def __init__(self, cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., epoch: _Optional[int] = ..., endpoints: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[MountState, str]] = ..., last_contact_age_seconds: _Optional[float] = ..., topic_count: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Listener(_message.Message):
    __slots__ = ("name", "bootstrap_servers", "security_protocol", "sasl_mechanism")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_SERVERS_FIELD_NUMBER: _ClassVar[int]
    SECURITY_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SASL_MECHANISM_FIELD_NUMBER: _ClassVar[int]
    name: str
    bootstrap_servers: _containers.RepeatedScalarFieldContainer[str]
    security_protocol: str
    sasl_mechanism: str
    def __init__(self, name: _Optional[str] = ..., bootstrap_servers: _Optional[_Iterable[str]] = ..., security_protocol: _Optional[str] = ..., sasl_mechanism: _Optional[str] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("cluster_id", "cluster", "mount", "epoch", "listeners", "site")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    cluster: str
    mount: str
    epoch: int
    listeners: _containers.RepeatedCompositeFieldContainer[Listener]
    site: str
    def __init__(self, cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., mount: _Optional[str] = ..., epoch: _Optional[int] = ..., listeners: _Optional[_Iterable[_Union[Listener, _Mapping]]] = ..., site: _Optional[str] = ...) -> None: ...
