from google.protobuf import field_mask_pb2 as _field_mask_pb2
from kdir.v1 import access_pb2 as _access_pb2
from kdir.v1 import entry_pb2 as _entry_pb2
from kdir.v1 import policies_pb2 as _policies_pb2
from kdir.v1 import resolve_pb2 as _resolve_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetEntryRequest(_message.Message):
    __slots__ = ("path", "kind", "token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: _entry_pb2.EntryKind
    token: str
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., token: _Optional[str] = ...) -> None: ...

class GetEntryResponse(_message.Message):
    __slots__ = ("authority", "entry", "quotas", "topic_issues")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ISSUES_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    entry: _entry_pb2.Entry
    quotas: _containers.RepeatedCompositeFieldContainer[_policies_pb2.QuotaUse]
    topic_issues: _containers.RepeatedCompositeFieldContainer[_policies_pb2.TopicIssue]
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., entry: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., quotas: _Optional[_Iterable[_Union[_policies_pb2.QuotaUse, _Mapping]]] = ..., topic_issues: _Optional[_Iterable[_Union[_policies_pb2.TopicIssue, _Mapping]]] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("path", "page_size", "page_token", "name_glob", "kinds", "include_system", "one_revision", "token", "recursive")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_GLOB_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    ONE_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    path: str
    page_size: int
    page_token: str
    name_glob: str
    kinds: _containers.RepeatedScalarFieldContainer[_entry_pb2.EntryKind]
    include_system: bool
    one_revision: bool
    token: str
    recursive: bool
    def __init__(self, path: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., name_glob: _Optional[str] = ..., kinds: _Optional[_Iterable[_Union[_entry_pb2.EntryKind, str]]] = ..., include_system: _Optional[bool] = ..., one_revision: _Optional[bool] = ..., token: _Optional[str] = ..., recursive: _Optional[bool] = ...) -> None: ...

class ListEntriesResponse(_message.Message):
    __slots__ = ("authority", "entries", "next_page_token", "revision_changed", "directory", "inherited", "unreadable_count")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVISION_CHANGED_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    entries: _containers.RepeatedCompositeFieldContainer[_entry_pb2.Entry]
    next_page_token: str
    revision_changed: bool
    directory: _entry_pb2.Entry
    inherited: _policies_pb2.Policies
    unreadable_count: int
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[_entry_pb2.Entry, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., revision_changed: _Optional[bool] = ..., directory: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., inherited: _Optional[_Union[_policies_pb2.Policies, _Mapping]] = ..., unreadable_count: _Optional[int] = ...) -> None: ...

class CreateEntryRequest(_message.Message):
    __slots__ = ("path", "entry", "make_parents", "request_id", "wait_until_active", "validate_only", "adopt_existing", "token", "allow_lock_out")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    MAKE_PARENTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_UNTIL_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    ADOPT_EXISTING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_LOCK_OUT_FIELD_NUMBER: _ClassVar[int]
    path: str
    entry: _entry_pb2.Entry
    make_parents: bool
    request_id: str
    wait_until_active: bool
    validate_only: bool
    adopt_existing: bool
    token: str
    allow_lock_out: bool
    def __init__(self, path: _Optional[str] = ..., entry: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., make_parents: _Optional[bool] = ..., request_id: _Optional[str] = ..., wait_until_active: _Optional[bool] = ..., validate_only: _Optional[bool] = ..., adopt_existing: _Optional[bool] = ..., token: _Optional[str] = ..., allow_lock_out: _Optional[bool] = ...) -> None: ...

class CreateEntryResponse(_message.Message):
    __slots__ = ("authority", "entry", "token")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    entry: _entry_pb2.Entry
    token: str
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., entry: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...

class UpdateEntryRequest(_message.Message):
    __slots__ = ("path", "kind", "entry", "update_mask", "etag", "request_id", "validate_only", "token", "allow_lock_out")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_LOCK_OUT_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: _entry_pb2.EntryKind
    entry: _entry_pb2.Entry
    update_mask: _field_mask_pb2.FieldMask
    etag: str
    request_id: str
    validate_only: bool
    token: str
    allow_lock_out: bool
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., entry: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., etag: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: _Optional[bool] = ..., token: _Optional[str] = ..., allow_lock_out: _Optional[bool] = ...) -> None: ...

class UpdateEntryResponse(_message.Message):
    __slots__ = ("authority", "entry", "token", "plan")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    entry: _entry_pb2.Entry
    token: str
    plan: _access_pb2.ChangePlan
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., entry: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., token: _Optional[str] = ..., plan: _Optional[_Union[_access_pb2.ChangePlan, _Mapping]] = ...) -> None: ...

class DeleteEntryRequest(_message.Message):
    __slots__ = ("path", "kind", "recursive", "etag", "request_id", "validate_only", "token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: _entry_pb2.EntryKind
    recursive: bool
    etag: str
    request_id: str
    validate_only: bool
    token: str
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., recursive: _Optional[bool] = ..., etag: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: _Optional[bool] = ..., token: _Optional[str] = ...) -> None: ...

class DeleteEntryResponse(_message.Message):
    __slots__ = ("authority", "token", "topic_count", "directory_count", "kafka_topics_deleted", "plan", "provision", "unreadable_count")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_COUNT_FIELD_NUMBER: _ClassVar[int]
    KAFKA_TOPICS_DELETED_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PROVISION_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    token: str
    topic_count: int
    directory_count: int
    kafka_topics_deleted: bool
    plan: _access_pb2.ChangePlan
    provision: _entry_pb2.Provision
    unreadable_count: int
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., token: _Optional[str] = ..., topic_count: _Optional[int] = ..., directory_count: _Optional[int] = ..., kafka_topics_deleted: _Optional[bool] = ..., plan: _Optional[_Union[_access_pb2.ChangePlan, _Mapping]] = ..., provision: _Optional[_Union[_entry_pb2.Provision, str]] = ..., unreadable_count: _Optional[int] = ...) -> None: ...

class MoveEntryRequest(_message.Message):
    __slots__ = ("path", "kind", "new_path", "leave_link", "etag", "request_id", "validate_only", "token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NEW_PATH_FIELD_NUMBER: _ClassVar[int]
    LEAVE_LINK_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    kind: _entry_pb2.EntryKind
    new_path: str
    leave_link: bool
    etag: str
    request_id: str
    validate_only: bool
    token: str
    def __init__(self, path: _Optional[str] = ..., kind: _Optional[_Union[_entry_pb2.EntryKind, str]] = ..., new_path: _Optional[str] = ..., leave_link: _Optional[bool] = ..., etag: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: _Optional[bool] = ..., token: _Optional[str] = ...) -> None: ...

class MoveEntryResponse(_message.Message):
    __slots__ = ("authority", "entry", "token", "plan")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    entry: _entry_pb2.Entry
    token: str
    plan: _access_pb2.ChangePlan
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., entry: _Optional[_Union[_entry_pb2.Entry, _Mapping]] = ..., token: _Optional[str] = ..., plan: _Optional[_Union[_access_pb2.ChangePlan, _Mapping]] = ...) -> None: ...
