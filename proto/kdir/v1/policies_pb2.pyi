import datetime

from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Policies(_message.Message):
    __slots__ = ("topic_config", "partitions", "replication_factor", "max_topics", "max_partitions", "producer_defaults", "consumer_defaults", "owner", "contact", "description", "tags", "read_only", "encryption_key_id", "manage", "stamps")
    class TopicConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ConfigValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ConfigValue, _Mapping]] = ...) -> None: ...
    class ProducerDefaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ConfigValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ConfigValue, _Mapping]] = ...) -> None: ...
    class ConsumerDefaultsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ConfigValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ConfigValue, _Mapping]] = ...) -> None: ...
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ConfigValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ConfigValue, _Mapping]] = ...) -> None: ...
    class ManageEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bool
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bool] = ...) -> None: ...
    class StampsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Stamp
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Stamp, _Mapping]] = ...) -> None: ...
    TOPIC_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    MAX_TOPICS_FIELD_NUMBER: _ClassVar[int]
    MAX_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CONTACT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    MANAGE_FIELD_NUMBER: _ClassVar[int]
    STAMPS_FIELD_NUMBER: _ClassVar[int]
    topic_config: _containers.MessageMap[str, ConfigValue]
    partitions: int
    replication_factor: int
    max_topics: int
    max_partitions: int
    producer_defaults: _containers.MessageMap[str, ConfigValue]
    consumer_defaults: _containers.MessageMap[str, ConfigValue]
    owner: str
    contact: str
    description: str
    tags: _containers.MessageMap[str, ConfigValue]
    read_only: bool
    encryption_key_id: str
    manage: _containers.ScalarMap[str, bool]
    stamps: _containers.MessageMap[str, Stamp]
    def __init__(self, topic_config: _Optional[_Mapping[str, ConfigValue]] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., max_topics: _Optional[int] = ..., max_partitions: _Optional[int] = ..., producer_defaults: _Optional[_Mapping[str, ConfigValue]] = ..., consumer_defaults: _Optional[_Mapping[str, ConfigValue]] = ..., owner: _Optional[str] = ..., contact: _Optional[str] = ..., description: _Optional[str] = ..., tags: _Optional[_Mapping[str, ConfigValue]] = ..., read_only: _Optional[bool] = ..., encryption_key_id: _Optional[str] = ..., manage: _Optional[_Mapping[str, bool]] = ..., stamps: _Optional[_Mapping[str, Stamp]] = ...) -> None: ...

class Stamp(_message.Message):
    __slots__ = ("by", "at_ms")
    BY_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    by: str
    at_ms: int
    def __init__(self, by: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...

class ConfigValue(_message.Message):
    __slots__ = ("value", "cleared")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    value: str
    cleared: bool
    def __init__(self, value: _Optional[str] = ..., cleared: _Optional[bool] = ...) -> None: ...

class EffectiveValue(_message.Message):
    __slots__ = ("field", "value", "source_path", "set_by", "set_time", "overrides", "kafka_value", "kafka_state", "used", "cleared")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PATH_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    SET_TIME_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    KAFKA_VALUE_FIELD_NUMBER: _ClassVar[int]
    KAFKA_STATE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    field: str
    value: str
    source_path: str
    set_by: str
    set_time: _timestamp_pb2.Timestamp
    overrides: _containers.RepeatedCompositeFieldContainer[OverriddenValue]
    kafka_value: str
    kafka_state: str
    used: int
    cleared: bool
    def __init__(self, field: _Optional[str] = ..., value: _Optional[str] = ..., source_path: _Optional[str] = ..., set_by: _Optional[str] = ..., set_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., overrides: _Optional[_Iterable[_Union[OverriddenValue, _Mapping]]] = ..., kafka_value: _Optional[str] = ..., kafka_state: _Optional[str] = ..., used: _Optional[int] = ..., cleared: _Optional[bool] = ...) -> None: ...

class OverriddenValue(_message.Message):
    __slots__ = ("value", "source_path", "used")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PATH_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    value: str
    source_path: str
    used: int
    def __init__(self, value: _Optional[str] = ..., source_path: _Optional[str] = ..., used: _Optional[int] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("field", "source_path", "limit", "used")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PATH_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    field: str
    source_path: str
    limit: int
    used: int
    def __init__(self, field: _Optional[str] = ..., source_path: _Optional[str] = ..., limit: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class TopicIssue(_message.Message):
    __slots__ = ("state", "field", "topics")
    STATE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    state: str
    field: str
    topics: int
    def __init__(self, state: _Optional[str] = ..., field: _Optional[str] = ..., topics: _Optional[int] = ...) -> None: ...

class AncestorPosition(_message.Message):
    __slots__ = ("cluster_id", "incarnation", "revision", "age_seconds")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    incarnation: str
    revision: int
    age_seconds: float
    def __init__(self, cluster_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., revision: _Optional[int] = ..., age_seconds: _Optional[float] = ...) -> None: ...

class GetEffectivePoliciesRequest(_message.Message):
    __slots__ = ("path", "what_if", "what_if_mask", "token", "directory")
    PATH_FIELD_NUMBER: _ClassVar[int]
    WHAT_IF_FIELD_NUMBER: _ClassVar[int]
    WHAT_IF_MASK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    path: str
    what_if: Policies
    what_if_mask: _field_mask_pb2.FieldMask
    token: str
    directory: bool
    def __init__(self, path: _Optional[str] = ..., what_if: _Optional[_Union[Policies, _Mapping]] = ..., what_if_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., token: _Optional[str] = ..., directory: _Optional[bool] = ...) -> None: ...

class GetEffectivePoliciesResponse(_message.Message):
    __slots__ = ("values", "ancestors", "topics_changed", "token", "caller_view")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ANCESTORS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CALLER_VIEW_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[EffectiveValue]
    ancestors: _containers.RepeatedCompositeFieldContainer[AncestorPosition]
    topics_changed: int
    token: str
    caller_view: bool
    def __init__(self, values: _Optional[_Iterable[_Union[EffectiveValue, _Mapping]]] = ..., ancestors: _Optional[_Iterable[_Union[AncestorPosition, _Mapping]]] = ..., topics_changed: _Optional[int] = ..., token: _Optional[str] = ..., caller_view: _Optional[bool] = ...) -> None: ...

class PlanArmingRequest(_message.Message):
    __slots__ = ("path", "aspect", "takeover", "token", "directory", "armed")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ASPECT_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    ARMED_FIELD_NUMBER: _ClassVar[int]
    path: str
    aspect: str
    takeover: bool
    token: str
    directory: bool
    armed: bool
    def __init__(self, path: _Optional[str] = ..., aspect: _Optional[str] = ..., takeover: _Optional[bool] = ..., token: _Optional[str] = ..., directory: _Optional[bool] = ..., armed: _Optional[bool] = ...) -> None: ...

class PlanArmingResponse(_message.Message):
    __slots__ = ("plan_hash", "calls", "acl_counts")
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ACL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    plan_hash: str
    calls: _containers.RepeatedCompositeFieldContainer[KafkaCall]
    acl_counts: AclCounts
    def __init__(self, plan_hash: _Optional[str] = ..., calls: _Optional[_Iterable[_Union[KafkaCall, _Mapping]]] = ..., acl_counts: _Optional[_Union[AclCounts, _Mapping]] = ...) -> None: ...

class AclCounts(_message.Message):
    __slots__ = ("before", "after", "limit")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    before: int
    after: int
    limit: int
    def __init__(self, before: _Optional[int] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class KafkaCall(_message.Message):
    __slots__ = ("operation", "resource", "key", "before", "after", "acl", "takeover", "deletes_data", "rejected")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ACL_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    DELETES_DATA_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    operation: str
    resource: str
    key: str
    before: str
    after: str
    acl: AclBinding
    takeover: bool
    deletes_data: bool
    rejected: str
    def __init__(self, operation: _Optional[str] = ..., resource: _Optional[str] = ..., key: _Optional[str] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., acl: _Optional[_Union[AclBinding, _Mapping]] = ..., takeover: _Optional[bool] = ..., deletes_data: _Optional[bool] = ..., rejected: _Optional[str] = ...) -> None: ...

class AclBinding(_message.Message):
    __slots__ = ("resource_type", "pattern_type", "resource_name", "principal", "host", "operation", "permission_type")
    RESOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PATTERN_TYPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    resource_type: str
    pattern_type: str
    resource_name: str
    principal: str
    host: str
    operation: str
    permission_type: str
    def __init__(self, resource_type: _Optional[str] = ..., pattern_type: _Optional[str] = ..., resource_name: _Optional[str] = ..., principal: _Optional[str] = ..., host: _Optional[str] = ..., operation: _Optional[str] = ..., permission_type: _Optional[str] = ...) -> None: ...

class ArmRequest(_message.Message):
    __slots__ = ("path", "aspect", "plan_hash", "request_id", "takeover", "token", "directory")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ASPECT_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TAKEOVER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    path: str
    aspect: str
    plan_hash: str
    request_id: str
    takeover: bool
    token: str
    directory: bool
    def __init__(self, path: _Optional[str] = ..., aspect: _Optional[str] = ..., plan_hash: _Optional[str] = ..., request_id: _Optional[str] = ..., takeover: _Optional[bool] = ..., token: _Optional[str] = ..., directory: _Optional[bool] = ...) -> None: ...

class ArmResponse(_message.Message):
    __slots__ = ("calls_made", "token", "in_progress", "message")
    CALLS_MADE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    calls_made: int
    token: str
    in_progress: bool
    message: str
    def __init__(self, calls_made: _Optional[int] = ..., token: _Optional[str] = ..., in_progress: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...
