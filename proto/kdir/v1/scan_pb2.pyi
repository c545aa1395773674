from kdir.v1 import entry_pb2 as _entry_pb2
from kdir.v1 import resolve_pb2 as _resolve_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScanTopicsRequest(_message.Message):
    __slots__ = ("path", "shard", "shard_count", "page_size", "page_token")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    path: str
    shard: int
    shard_count: int
    page_size: int
    page_token: str
    def __init__(self, path: _Optional[str] = ..., shard: _Optional[int] = ..., shard_count: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ScanTopicsResponse(_message.Message):
    __slots__ = ("authority", "entries", "next_page_token", "owners", "inherited_grants_expired", "unreadable_count")
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    INHERITED_GRANTS_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    authority: _resolve_pb2.Authority
    entries: _containers.RepeatedCompositeFieldContainer[_entry_pb2.Entry]
    next_page_token: str
    owners: _containers.RepeatedScalarFieldContainer[str]
    inherited_grants_expired: bool
    unreadable_count: int
    def __init__(self, authority: _Optional[_Union[_resolve_pb2.Authority, _Mapping]] = ..., entries: _Optional[_Iterable[_Union[_entry_pb2.Entry, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., owners: _Optional[_Iterable[str]] = ..., inherited_grants_expired: _Optional[bool] = ..., unreadable_count: _Optional[int] = ...) -> None: ...
