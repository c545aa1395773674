import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from kdir.v1 import access_pb2 as _access_pb2
from kdir.v1 import entry_pb2 as _entry_pb2
from kdir.v1 import policies_pb2 as _policies_pb2
from kdir.v1 import resolve_pb2 as _resolve_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChangeAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_ACTION_UNSPECIFIED: _ClassVar[ChangeAction]
    CHANGE_ACTION_INSERT: _ClassVar[ChangeAction]
    CHANGE_ACTION_UPDATE: _ClassVar[ChangeAction]
    CHANGE_ACTION_DELETE: _ClassVar[ChangeAction]

class ChangeScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHANGE_SCOPE_UNSPECIFIED: _ClassVar[ChangeScope]
    CHANGE_SCOPE_GRANTS: _ClassVar[ChangeScope]
    CHANGE_SCOPE_INHERITED: _ClassVar[ChangeScope]
    CHANGE_SCOPE_OPERATED: _ClassVar[ChangeScope]
CHANGE_ACTION_UNSPECIFIED: ChangeAction
CHANGE_ACTION_INSERT: ChangeAction
CHANGE_ACTION_UPDATE: ChangeAction
CHANGE_ACTION_DELETE: ChangeAction
CHANGE_SCOPE_UNSPECIFIED: ChangeScope
CHANGE_SCOPE_GRANTS: ChangeScope
CHANGE_SCOPE_INHERITED: ChangeScope
CHANGE_SCOPE_OPERATED: ChangeScope

class ChangeEvent(_message.Message):
    __slots__ = ("action", "kind", "entry_id", "parent_id", "path", "path_before", "revision", "position", "time", "principal", "before", "after", "cluster_id", "request_id", "scope", "grants_before", "grants_after", "effective", "operation")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PATH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    GRANTS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    GRANTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    action: ChangeAction
    kind: _entry_pb2.EntryKind
    entry_id: int
    parent_id: int
    path: str
    path_before: str
    revision: int
    position: int
    time: _timestamp_pb2.Timestamp
    principal: str
    before: _entry_pb2.Entry
    after: _entry_pb2.Entry
    cluster_id: str
    request_id: str
    scope: ChangeScope
    grants_before: _access_pb2.Grants
    grants_after: _access_pb2.Grants
    effective: _policies_pb2.Policies
    operation: str
    def __init__(self, action: _Optional[_Union[ChangeAction, str]] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., entry_id: _Optional[int] = ..., parent_id: _Optional[int] = ..., path: _Optional[str] = ..., path_before: _Optional[str] = ..., revision: _Optional[int] = ..., position: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., principal: _Optional[str] = ..., before: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., after: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., cluster_id: _Optional[str] = ..., request_id: _Optional[str] = ..., scope: _Optional[_Union[ChangeScope, str]] = ..., grants_before: _Optional[_Union[_access_pb2.Grants, _Mapping]] = ..., grants_after: _Optional[_Union[_access_pb2.Grants, _Mapping]] = ..., effective: _Optional[_Union[_policies_pb2.Policies, _Mapping]] = ..., operation: _Optional[str] = ...) -> None: ...

class OutboxRow(_message.Message):
    __slots__ = ("events", "logged_facts")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FACTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ChangeEvent]
    logged_facts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, events: _Optional[_Iterable[_Union[ChangeEvent, _Mapping]]] = ..., logged_facts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChangeLogState(_message.Message):
    __slots__ = ("generation", "incarnation", "revision", "message", "waits_for_operator")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_OPERATOR_FIELD_NUMBER: _ClassVar[int]
    generation: int
    incarnation: str
    revision: int
    message: str
    waits_for_operator: bool
    def __init__(self, generation: _Optional[int] = ..., incarnation: _Optional[str] = ..., revision: _Optional[int] = ..., message: _Optional[str] = ..., waits_for_operator: _Optional[bool] = ...) -> None: ...

class ChangeLogSkip(_message.Message):
    __slots__ = ("incarnation", "revision", "commits", "principal", "request_id", "time_ms", "earlier")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    revision: int
    commits: int
    principal: str
    request_id: str
    time_ms: int
    earlier: _containers.RepeatedCompositeFieldContainer[EarlierChangeLogSkip]
    def __init__(self, incarnation: _Optional[str] = ..., revision: _Optional[int] = ..., commits: _Optional[int] = ..., principal: _Optional[str] = ..., request_id: _Optional[str] = ..., time_ms: _Optional[int] = ..., earlier: _Optional[_Iterable[_Union[EarlierChangeLogSkip, _Mapping]]] = ...) -> None: ...

class EarlierChangeLogSkip(_message.Message):
    __slots__ = ("revision", "commits")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    commits: int
    def __init__(self, revision: _Optional[int] = ..., commits: _Optional[int] = ...) -> None: ...

class GetChangeLogRequest(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    def __init__(self, cluster: _Optional[str] = ...) -> None: ...

class GetChangeLogResponse(_message.Message):
    __slots__ = ("authority", "configured", "state_topic", "history_topic", "bootstrap_servers", "state", "publisher", "waiting_commits", "waiting_bytes", "waiting_since_ms", "schema_registry")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_FIELD_NUMBER: _ClassVar[int]
    STATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    HISTORY_TOPIC_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_SERVERS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    WAITING_COMMITS_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAITING_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_REGISTRY_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    configured: bool
    state_topic: str
    history_topic: str
    bootstrap_servers: _containers.RepeatedScalarFieldContainer[str]
    state: ChangeLogState
    publisher: str
    waiting_commits: int
    waiting_bytes: int
    waiting_since_ms: int
    schema_registry: str
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., configured: _Optional[bool] = ..., state_topic: _Optional[str] = ..., history_topic: _Optional[str] = ..., bootstrap_servers: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[ChangeLogState, _Mapping]] = ..., publisher: _Optional[str] = ..., waiting_commits: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., waiting_since_ms: _Optional[int] = ..., schema_registry: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("path", "after_token", "checkpoint_seconds")
    PATH_FIELD_NUMBER: _ClassVar[int]
    AFTER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    after_token: str
    checkpoint_seconds: int
    def __init__(self, path: _Optional[str] = ..., after_token: _Optional[str] = ..., checkpoint_seconds: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("events", "token", "authority")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ChangeEvent]
    token: str
    authority: _resolve_pb2.Authority
    def __init__(self, events: _Optional[_Iterable[_Union[ChangeEvent, _Mapping]]] = ..., token: _Optional[str] = ..., authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ...) -> None: ...

class ListChangesRequest(_message.Message):
    __slots__ = ("path", "page_size", "page_token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    page_size: int
    page_token: str
    def __init__(self, path: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListChangesResponse(_message.Message):
    __slots__ = ("authority", "events", "next_page_token", "oldest_revision", "rights_known_since")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OLDEST_REVISION_FIELD_NUMBER: _ClassVar[int]
    RIGHTS_KNOWN_SINCE_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    events: _containers.RepeatedCompositeFieldContainer[ChangeEvent]
    next_page_token: str
    oldest_revision: int
    rights_known_since: int
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., events: _Optional[_Iterable[_Union[ChangeEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., oldest_revision: _Optional[int] = ..., rights_known_since: _Optional[int] = ...) -> None: ...
