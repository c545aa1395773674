from kdir.v1 import entry_pb2 as _entry_pb2
from kdir.v1 import error_pb2 as _error_pb2
from kdir.v1 import policies_pb2 as _policies_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReferralKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFERRAL_KIND_UNSPECIFIED: _ClassVar[ReferralKind]
    REFERRAL_KIND_DOWN: _ClassVar[ReferralKind]
    REFERRAL_KIND_UP: _ClassVar[ReferralKind]
    REFERRAL_KIND_DIRECT: _ClassVar[ReferralKind]
REFERRAL_KIND_UNSPECIFIED: ReferralKind
REFERRAL_KIND_DOWN: ReferralKind
REFERRAL_KIND_UP: ReferralKind
REFERRAL_KIND_DIRECT: ReferralKind

class ResolveRequest(_message.Message):
    __slots__ = ("path", "prefer", "token", "recursive", "no_follow", "confirm_links")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    NO_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_LINKS_FIELD_NUMBER: _ClassVar[int]
    path: str
    prefer: _entry_pb2.EntryKind
    token: str
    recursive: bool
    no_follow: bool
    confirm_links: bool
    def __init__(self, path: _Optional[str] = ..., prefer: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., token: _Optional[str] = ..., recursive: _Optional[bool] = ..., no_follow: _Optional[bool] = ..., confirm_links: _Optional[bool] = ...) -> None: ...

class ResolveResponse(_message.Message):
    __slots__ = ("authority", "outcome")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    outcome: Outcome
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("resolution", "referral", "rewrite", "absent", "error")
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    REFERRAL_FIELD_NUMBER: _ClassVar[int]
    REWRITE_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    resolution: Resolution
    referral: Referral
    rewrite: Rewrite
    absent: Absent
    error: ErrorOutcome
    def __init__(self, resolution: _Optional[_Union[Resolution, _Mapping]] = ..., referral: _Optional[_Union[Referral, _Mapping]] = ..., rewrite: _Optional[_Union[Rewrite, _Mapping]] = ..., absent: _Optional[_Union[Absent, _Mapping]] = ..., error: _Optional[_Union[ErrorOutcome, _Mapping]] = ...) -> None: ...

class Resolution(_message.Message):
    __slots__ = ("entry", "has_container", "lifetime_seconds", "authority_index", "effective")
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    HAS_CONTAINER_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_INDEX_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    entry: _entry_pb2.Entry
    has_container: bool
    lifetime_seconds: int
    authority_index: int
    effective: _policies_pb2.Policies
    def __init__(self, entry: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., has_container: _Optional[bool] = ..., lifetime_seconds: _Optional[int] = ..., authority_index: _Optional[int] = ..., effective: _Optional[_Union[_policies_pb2.Policies, _Mapping]] = ...) -> None: ...

class Referral(_message.Message):
    __slots__ = ("kind", "mount", "cluster_id", "cluster", "epoch", "endpoints", "lifetime_seconds", "age_seconds")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MOUNT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    kind: ReferralKind
    mount: str
    cluster_id: str
    cluster: str
    epoch: int
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    lifetime_seconds: int
    age_seconds: int
    def __init__(self, kind: _Optional[_Union[ReferralKind, str]] = ..., mount: _Optional[str] = ..., cluster_id: _Optional[str] = ..., cluster: _Optional[str] = ..., epoch: _Optional[int] = ..., endpoints: _Optional[_Iterable[str]] = ..., lifetime_seconds: _Optional[int] = ..., age_seconds: _Optional[int] = ...) -> None: ...

class Rewrite(_message.Message):
    __slots__ = ("link", "paths", "mode", "writes", "fall_back_on_absent", "site_link", "lifetime_seconds")
    LINK_FIELD_NUMBER: _ClassVar[int]
    PATHS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    FALL_BACK_ON_ABSENT_FIELD_NUMBER: _ClassVar[int]
    SITE_LINK_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    link: str
    paths: _containers.RepeatedScalarFieldContainer[str]
    mode: _entry_pb2.LinkMode
    writes: _entry_pb2.LinkWrites
    fall_back_on_absent: bool
    site_link: bool
    lifetime_seconds: int
    def __init__(self, link: _Optional[str] = ..., paths: _Optional[_Iterable[str]] = ..., mode: _Optional[_Union[_entry_pb2.LinkMode, str]] = ..., writes: _Optional[_Union[_entry_pb2.LinkWrites, str]] = ..., fall_back_on_absent: _Optional[bool] = ..., site_link: _Optional[bool] = ..., lifetime_seconds: _Optional[int] = ...) -> None: ...

class Absent(_message.Message):
    __slots__ = ("nearest_directory", "lifetime_seconds")
    NEAREST_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    nearest_directory: str
    lifetime_seconds: int
    def __init__(self, nearest_directory: _Optional[str] = ..., lifetime_seconds: _Optional[int] = ...) -> None: ...

class ErrorOutcome(_message.Message):
    __slots__ = ("reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    reason: _error_pb2.ErrorReason
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[_Union[_error_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Authority(_message.Message):
    __slots__ = ("cluster", "server", "token", "stale", "age_seconds", "unconfirmed_seconds", "revision", "incarnation", "stop_reason", "sealed")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    cluster: _entry_pb2.Cluster
    server: str
    token: str
    stale: bool
    age_seconds: float
    unconfirmed_seconds: float
    revision: int
    incarnation: str
    stop_reason: str
    sealed: bool
    def __init__(self, cluster: _Optional[_Union[_entry_pb2.Cluster, _Mapping]] = ..., server: _Optional[str] = ..., token: _Optional[str] = ..., stale: _Optional[bool] = ..., age_seconds: _Optional[float] = ..., unconfirmed_seconds: _Optional[float] = ..., revision: _Optional[int] = ..., incarnation: _Optional[str] = ..., stop_reason: _Optional[str] = ..., sealed: _Optional[bool] = ...) -> None: ...

class BatchResolveRequest(_message.Message):
    __slots__ = ("paths", "prefer", "token", "recursive", "no_follow", "confirm_links")
    PATHS_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    NO_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_LINKS_FIELD_NUMBER: _ClassVar[int]
    paths: _containers.RepeatedScalarFieldContainer[str]
    prefer: _entry_pb2.EntryKind
    token: str
    recursive: bool
    no_follow: bool
    confirm_links: bool
    def __init__(self, paths: _Optional[_Iterable[str]] = ..., prefer: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., token: _Optional[str] = ..., recursive: _Optional[bool] = ..., no_follow: _Optional[bool] = ..., confirm_links: _Optional[bool] = ...) -> None: ...

class BatchResolveResponse(_message.Message):
    __slots__ = ("authorities", "outcomes")
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    authorities: _containers.RepeatedCompositeFieldContainer[Authority]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, authorities: _Optional[_Iterable[_Union[Authority, _Mapping]]] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("cluster", "physical_name", "token")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_NAME_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    physical_name: str
    token: str
    def __init__(self, cluster: _Optional[str] = ..., physical_name: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class LocateResponse(_message.Message):
    __slots__ = ("authority", "outcome")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    authority: Authority
    outcome: Outcome
    def __init__(self, authority: _Optional[_Union[Authority, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...
