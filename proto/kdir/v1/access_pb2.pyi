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

class ResourceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOURCE_KIND_UNSPECIFIED: _ClassVar[ResourceKind]
    RESOURCE_KIND_TOPIC: _ClassVar[ResourceKind]
    RESOURCE_KIND_GROUP: _ClassVar[ResourceKind]
    RESOURCE_KIND_TRANSACTIONAL_ID: _ClassVar[ResourceKind]

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
RESOURCE_KIND_UNSPECIFIED: ResourceKind
RESOURCE_KIND_TOPIC: ResourceKind
RESOURCE_KIND_GROUP: ResourceKind
RESOURCE_KIND_TRANSACTIONAL_ID: ResourceKind
PERMISSION_UNSPECIFIED: Permission
PERMISSION_DENY: Permission
PERMISSION_ALLOW: Permission

class Grant(_message.Message):
    __slots__ = ("principal", "host", "operation", "permission", "resource_kind", "resource_name")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_KIND_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    operation: Operation
    permission: Permission
    resource_kind: ResourceKind
    resource_name: str
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., permission: _Optional[_Union[Permission, str]] = ..., resource_kind: _Optional[_Union[ResourceKind, str]] = ..., resource_name: _Optional[str] = ...) -> None: ...

class AddGrantsRequest(_message.Message):
    __slots__ = ("path", "grants", "request_id")
    PATH_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    path: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    request_id: str
    def __init__(self, path: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class AddGrantsResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class RemoveGrantsRequest(_message.Message):
    __slots__ = ("path", "grants", "request_id")
    PATH_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    path: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    request_id: str
    def __init__(self, path: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class RemoveGrantsResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class ListGrantsRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class ListGrantsResponse(_message.Message):
    __slots__ = ("grants",)
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ...) -> None: ...

class CheckAccessRequest(_message.Message):
    __slots__ = ("principal", "host", "operation", "path", "token")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    operation: Operation
    path: str
    token: str
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., path: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class CheckAccessResponse(_message.Message):
    __slots__ = ("allowed", "deciding_grant", "deciding_path")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    DECIDING_GRANT_FIELD_NUMBER: _ClassVar[int]
    DECIDING_PATH_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    deciding_grant: Grant
    deciding_path: str
    def __init__(self, allowed: _Optional[bool] = ..., deciding_grant: _Optional[_Union[Grant, _Mapping]] = ..., deciding_path: _Optional[str] = ...) -> None: ...

class AuthorizeAnyRequest(_message.Message):
    __slots__ = ("principal", "host", "operation", "resource_kind")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_KIND_FIELD_NUMBER: _ClassVar[int]
    principal: str
    host: str
    operation: Operation
    resource_kind: ResourceKind
    def __init__(self, principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[_Union[Operation, str]] = ..., resource_kind: _Optional[_Union[ResourceKind, str]] = ...) -> None: ...

class AuthorizeAnyResponse(_message.Message):
    __slots__ = ("allowed",)
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    def __init__(self, allowed: _Optional[bool] = ...) -> None: ...
