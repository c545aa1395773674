"""Peers that send anything: requests and answers made of the contract's descriptors, and mutations.

``Anything`` makes messages, texts and bytes from one seed, with which a failure can be repeated.
``HostileClient`` sends them to every method of a server and judges the answers;
``HostileDirectory`` answers with them, as a mounted server or as a parent;
``HostileChild`` sends them to a parent over a link.
"""

from __future__ import annotations

import base64
import itertools
import queue
import random
import string
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from kdir.v1 import (
    access_pb2,
    admin_pb2,
    directory_pb2,
    error_pb2,
    federation_pb2,
    federation_pb2_grpc,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from resolver.error_status import DETAILS_KEY
from resolver.transport import Method, Stream

__all__ = [
    "CLOSED_LINK",
    "METHODS",
    "Anything",
    "Arguments",
    "HostileChild",
    "HostileClient",
    "HostileDirectory",
    "HostileTransport",
    "problem_with",
]

MODULES: Final = (
    access_pb2,
    admin_pb2,
    directory_pb2,
    federation_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)
METHODS: Final[Sequence[MethodDescriptor]] = [
    method
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
CLOSED_LINK: Final = "StatusCode.CANCELLED: CANCELLED: 0 statuses"
"""What ``problem_with`` returns for a link that the parent cancels."""
_CALL_SECONDS: Final = 30.0
_NAMES: Final = ("a", "b", "t", "d", "x.y", "__s")
_STRANGE: Final = (
    "",
    " ",
    "\0",
    "\x1b]0;owned\x07",
    "a\nb\tc",
    "\u202eabc",
    "\x9b2J",
    "é" * 40,
    "\U0001f600",
    "*",
    "User:*",
    "User:ANONYMOUS",
    "../../etc/passwd",
    "x" * 300,
    "x" * 5_000,
    "%s%n",
    "'; DROP TABLE rows; --",
    "-1",
    "1e999",
)
_MASKS: Final = (
    "policies",
    "policies.owner",
    "policies.tags.a",
    "policies.tags",
    "policies.topic_config.retention.ms",
    "policies.topic_config.",
    "policies.manage.create",
    "policies.max_topics",
    "directory.closed",
    "link.targets",
    "mount.endpoints",
    "topic.partitions",
    "path",
    "*",
    "policies.nothing",
)
_GLOBS: Final = ("*", "**", "a*", "*" * 60, "[a-z]*", "[", "a/**/b", "[!", "?" * 200, "**/**/**/a")


_TAME: Final = {
    "cluster": ("", "la"),
    "cluster_id": ("kc-1", "kc-2"),
    "principal": ("User:bob", "User:alice", "Group:ops"),
    "host": ("", "*", "10.0.0.1"),
    "aspect": ("configs", "create", "acls", "delete"),
    "physical_name": ("a.t", "a.b", "t"),
    "resource_name": ("",),
}


class Arguments:
    """Texts that a server accepts: its mount, and tokens from its answers. Thread-safe."""

    def __init__(self, mount: str = "/la") -> None:
        self.mount: Final = mount
        self.tokens: Final[deque[str]] = deque(maxlen=500)

    def learn(self, message: Message) -> None:
        """Remembers the tokens of an answer."""
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                if not field.is_repeated:
                    self.learn(value)
            elif "token" in field.name and isinstance(value, str):
                self.tokens.append(value)


class Anything:
    """Messages, texts and bytes of one seed."""

    def __init__(self, seed: int, arguments: Arguments | None = None) -> None:
        self.seed: Final = seed
        self._random: Final = random.Random(seed)
        self._message: Final = arguments or Arguments()
        self._is_wild = True
        """False for half of the messages: they are nearly valid, and get past the first checks."""

    # -- texts -----------------------------------------------------------------------------------

    def path(self) -> str:
        """Returns a path, mostly of few names, so that it may exist and the tree stays small."""
        choose = self._random
        strange: Callable[[], str] | None = {
            0: lambda: choose.choice(_STRANGE),
            1: lambda: "/" + "/".join(choose.choices(_NAMES, k=choose.randrange(70))),
            2: lambda: choose.choice(("/", "//", "/la/", "/..", "/ny/a", "/la/../ny", "/l\0a")),
            3: lambda: "/" + "x" * choose.choice((248, 249, 250, 1_023, 1_024, 100_000)),
            4: lambda: self._message.mount,
        }.get(choose.randrange(0 if self._is_wild else 4, 20))
        if strange is not None:
            return strange()
        depth = choose.choice((1, 1, 2, 2, 3))
        return "/".join((self._message.mount, *choose.choices(_NAMES, k=depth)))

    def token(self) -> str:
        """Returns a token of the server's, as it is or with a bit changed, with or without a valid
        check sum; or any other text.
        """
        choose = self._random
        if not self._is_wild:
            return choose.choice(self._message.tokens) if self._message.tokens else ""
        if not self._message.tokens or choose.random() < 0.1:
            return choose.choice((*_STRANGE, "AAAA", "=" * 50))
        token = choose.choice(self._message.tokens)
        if choose.random() < 0.3:
            return token
        raw = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if choose.random() < 0.5 or len(raw) < 9:
            return self._encoded(self.mutated(bytes(raw)))
        # A page's token has its check sum in front, a position's behind.
        body = self.mutated(bytes(raw[4:]) if choose.random() < 0.5 else bytes(raw[:-4]), 1)
        check = zlib.crc32(body).to_bytes(4, "big")
        return self._encoded(check + body if choose.random() < 0.5 else body + check)

    @staticmethod
    def _encoded(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")

    def text(self) -> str:
        """Returns any text."""
        choose = self._random
        if self._is_wild and choose.random() < 0.4:
            return choose.choice(_STRANGE)
        if not self._is_wild or choose.random() < 0.3:
            return choose.choice(("User:bob", "la", "10.0.0.1", "1", "true", "configs", "acls"))
        return "".join(choose.choices(string.printable, k=choose.randrange(20)))

    def mutated(self, data: bytes, most: int = 4) -> bytes:
        """Returns the bytes after 1 to ``most`` changes: bits flipped, bytes removed or added."""
        choose, changed = self._random, bytearray(data)
        for _ in range(choose.randint(1, most)):
            place, way = choose.randrange(len(changed) + 1), choose.randrange(4)
            if way < 2 and place < len(changed):
                changed[place] ^= 1 << choose.randrange(8)
            elif way == 2:
                del changed[place : place + choose.randint(1, 8)]
            else:
                changed[place:place] = choose.randbytes(choose.randint(1, 8))
        return bytes(changed)

    # -- messages --------------------------------------------------------------------------------

    def message(self, kind: Any) -> Any:
        """Returns a message of a descriptor with most of its fields set."""
        message = GetMessageClass(kind)()
        self._is_wild = self._random.random() < 0.5
        self._fill(message, 0)
        return message

    def request(self, kind: Any) -> bytes:
        """Returns the bytes of a random request, sometimes mutated, or any bytes."""
        match self._random.randrange(20):
            case 0:
                return self._random.randbytes(self._random.randrange(200))
            case 1 | 2:
                return self.mutated(self.message(kind).SerializeToString())
            case _:
                return bytes(self.message(kind).SerializeToString())

    def _fill(self, message: Any, depth: int) -> None:
        choose = self._random
        if message.DESCRIPTOR.full_name == "google.protobuf.FieldMask":
            count = 2_000 if choose.random() < 0.002 else choose.randrange(4)
            message.paths.extend(choose.choice(_MASKS) for _ in range(count))
            return
        groups: dict[str, list[Any]] = {}
        for field in message.DESCRIPTOR.fields:
            one_of = field.containing_oneof
            groups.setdefault(one_of.name if one_of is not None else field.name, []).append(field)
        for fields in groups.values():
            field = choose.choice(fields)
            if choose.random() < self._likely(field.name):
                self._set(message, field, depth)

    def _likely(self, name: str) -> float:
        if name in {"path", "kind", "entry", "hello"}:
            return 0.95
        if self._is_wild:
            return 0.45
        return 0.1 if "token" in name or name in {"etag", "resource_type"} else 0.85

    def _set(self, message: Any, field: Any, depth: int) -> None:
        choose = self._random
        if not field.is_repeated:
            if field.message_type is not None:
                if depth < 5:
                    part = getattr(message, field.name)
                    part.SetInParent()
                    self._fill(part, depth + 1)
                return
            with suppress(ValueError):  # half of a pair of surrogates, say
                setattr(message, field.name, self._scalar(field))
            return
        target = getattr(message, field.name)
        count = choose.choice((0, 1, 1, 2, 3))
        if choose.random() < 0.004:
            count = 1_500
        for _ in range(count):
            if field.message_type is None:
                target.append(self._scalar(field))
            elif field.message_type.GetOptions().map_entry:
                self._set_pair(target, field.message_type)
            elif depth < 5:
                self._fill(target.add(), depth + 1)

    def _set_pair(self, target: Any, entry: Any) -> None:
        key = self._scalar(entry.fields_by_name["key"])
        value = entry.fields_by_name["value"]
        if value.message_type is not None:
            self._fill(target[key], 5)
        else:
            target[key] = self._scalar(value)

    def _scalar(self, field: Any) -> Any:
        choose = self._random
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return choose.randbytes(choose.randrange(40))
            case FieldDescriptor.CPPTYPE_STRING:
                return self._named(field.name)
            case FieldDescriptor.CPPTYPE_BOOL:
                return choose.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                known = [one.number for one in field.enum_type.values]
                return choose.choice((*known, 99, -1, 2**31 - 1) if self._is_wild else known)
            case _ if not self._is_wild:
                return choose.choice((0, 1, 2))
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return choose.choice((0.0, 1.0, -1.0, 1e300, float("nan"), float("inf")))
            case FieldDescriptor.CPPTYPE_INT32:
                return choose.choice((0, 1, 2, -1, 10_000, 2**31 - 1, -(2**31)))
            case FieldDescriptor.CPPTYPE_UINT32:
                return choose.choice((0, 1, 2, 10_000, 2**31, 2**32 - 1))
            case FieldDescriptor.CPPTYPE_INT64:
                return choose.choice((0, 1, -1, 2**62, 2**63 - 1, -(2**63)))
            case _:
                return choose.choice((0, 1, 2, 2**53, 2**64 - 1))

    def _named(self, name: str) -> str:
        if "token" in name:
            return self.token()
        if "glob" in name:
            return self._random.choice((*_GLOBS, self.text()) if self._is_wild else ("*", "a*"))
        if "path" in name or name in {"targets", "mount", "link", "nearest_directory"}:
            return self.path()
        if not self._is_wild and name in _TAME:
            return self._random.choice(_TAME[name])
        if "endpoint" in name:
            return self._random.choice(("127.0.0.1:1", "unix:/x", "a:b", "[::1]:80", self.text()))
        return self.text()


# -- judging -------------------------------------------------------------------------------------


def problem_with(error: grpc.RpcError) -> str:
    """Returns what is wrong with an error's form; empty if it has exactly one ErrorInfo of a known
    reason other than INTERNAL, and shows no stack, file or library.
    """
    found: Any = error
    details = [one.value for one in found.trailing_metadata() or () if one.key == DETAILS_KEY]
    arguments = f"{found.code()}: {found.details()}"
    if len(details) != 1:
        return f"{arguments}: {len(details)} statuses"
    status = status_pb2.Status.FromString(details[0])
    infos = []
    for one in status.details:
        info = error_details_pb2.ErrorInfo()
        if one.Unpack(info):
            infos.append(info)
    if len(infos) != 1 or infos[0].domain != "kdir":
        return f"{arguments}: {len(infos)} ErrorInfos"
    if f"ERROR_REASON_{infos[0].reason}" not in error_pb2.ErrorReason.keys():  # noqa: SIM118
        return f"{arguments}: unknown reason {infos[0].reason}"
    if infos[0].reason == "INTERNAL":
        return f"{arguments}: a bug"
    reported = arguments + str(infos[0])
    for leak in ("Traceback", 'File "', ".py", "sqlite3", "site-packages"):
        if leak in reported:
            return f"{arguments}: tells {leak}"
    return ""


class Fault(NamedTuple):
    """Fault of a server, with the request that repeats it."""

    method: str
    request: bytes
    problem: str


class HostileClient:
    """Client that sends random requests to every method of a server."""

    def __init__(self, address: str, seed: int, arguments: Arguments) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channel: Final = grpc.insecure_channel(address, options)
        self._anything: Final = Anything(seed, arguments)
        self._message: Final = arguments
        self.faults: Final[list[Fault]] = []
        self.outcomes: Final[Counter[str]] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def send(self, count: int, methods: Sequence[MethodDescriptor] = METHODS) -> None:
        """Sends ``count`` requests, to one method after the other."""
        for method in itertools.islice(itertools.cycle(methods), count):
            raw = self._anything.request(method.input_type)
            if method.name == "Watch":
                # What is of a later revision is waited for.
                raw = raw[:2_000]
            self._send(method, raw)

    def _send(self, method: MethodDescriptor, raw: bytes) -> None:
        name = f"/{method.containing_service.full_name}/{method.name}"
        try:
            answer = self._ask(name, method, raw)
        except grpc.RpcError as error:
            problem = problem_with(error)
            if method.client_streaming and problem == CLOSED_LINK:
                problem = ""  # the parent waits only briefly for a hello
            self.outcomes[str(error.code())] += 1
        else:
            problem = ""
            self.outcomes["answered"] += 1
            if answer is not None:
                self._message.learn(GetMessageClass(method.output_type).FromString(answer))
        if problem:
            self.faults.append(Fault(name, raw, problem))

    def _ask(self, name: str, method: MethodDescriptor, raw: bytes) -> bytes | None:
        if not method.server_streaming:
            call: Any = self._channel.unary_unary(name)
            answer: bytes = call(raw, timeout=_CALL_SECONDS)
            return answer
        if method.client_streaming:
            both: Any = self._channel.stream_stream(name)
            stream = both(iter((raw,)), timeout=_CALL_SECONDS)
        else:
            answers: Any = self._channel.unary_stream(name)
            stream = answers(raw, timeout=_CALL_SECONDS)
        try:
            first: bytes | None = next(stream, None)
            return first
        finally:
            stream.cancel()


class HostileChild:
    """A child that holds a link with a true hello, and sends anything after it."""

    def __init__(self, address: str, hello: federation_pb2.Hello, seed: int) -> None:
        self._channel: Final = grpc.insecure_channel(address)
        self._hello: Final = hello
        self._anything: Final = Anything(seed)

    def send(self, count: int) -> str:
        """Sends so many messages over one link; returns what is wrong with how it ended."""
        kind = federation_pb2.LinkRequest.DESCRIPTOR
        ended = threading.Event()

        def requests() -> Iterator[bytes]:
            yield federation_pb2.LinkRequest(hello=self._hello).SerializeToString()
            for _ in range(count):
                if ended.is_set():
                    return
                yield self._anything.request(kind)

        link: Any = self._channel.stream_stream("/kdir.v1.FederationService/Link")
        call = link(requests(), timeout=_CALL_SECONDS)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            return problem_with(error)
        finally:
            ended.set()
            call.cancel()
        return ""

    def report(self, *tables: federation_pb2.MountTable) -> grpc.Call:
        """Links, sends tables of mounts below it, then heartbeats; the caller cancels the link."""
        output: queue.SimpleQueue[federation_pb2.LinkRequest | None] = queue.SimpleQueue()
        output.put(federation_pb2.LinkRequest(hello=self._hello))
        for table in tables:
            output.put(federation_pb2.LinkRequest(mounts_below=table))
        call = federation_pb2_grpc.FederationServiceStub(self._channel).Link(iter(output.get, None))
        call.add_callback(lambda: output.put(None))
        threading.Thread(target=self._stay, args=(call, output), daemon=True).start()
        return call

    @staticmethod
    def _stay(call: Any, output: queue.SimpleQueue[federation_pb2.LinkRequest | None]) -> None:
        with suppress(grpc.RpcError):
            for _ in call:
                beat = federation_pb2.Heartbeat()
                output.put(federation_pb2.LinkRequest(heartbeat=beat))

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


# -- answering -----------------------------------------------------------------------------------


class HostileTransport:
    """A ``resolver.transport.Transport`` over which every server answers anything."""

    def __init__(self, seed: int) -> None:
        self._anything: Final = Anything(seed)

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Message,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        return self._anything.message(method.response.DESCRIPTOR)

    def stream(
        self, endpoint: str, method: Method, request: Message, *, cluster_id: str = ""
    ) -> Stream:
        return _Answers(
            [self._anything.message(method.response.DESCRIPTOR) for _ in range(3)],
        )

    def close(self) -> None:
        """Does nothing: no connection was opened."""


class _Answers:
    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = answers

    def __iter__(self) -> Iterator[Any]:
        return iter(self._answers)

    def cancel(self) -> None:
        """Does nothing: all answers exist already."""


class HostileDirectory(grpc.GenericRpcHandler):
    """A server on loopback that answers every method with random messages."""

    def __init__(self, seed: int) -> None:
        self._seeds: Final = itertools.count(seed)
        self._server: Final = grpc.server(ThreadPoolExecutor(8), handlers=[self])
        self.address: Final = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self.calls: Final[Counter[str]] = Counter()
        self._outputs: Final = {
            f"/{method.containing_service.full_name}/{method.name}": method.output_type
            for method in METHODS
        }

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = str(handler_call_details.method)
        output = self._outputs.get(method)
        if output is None:
            return None
        self.calls[method] += 1

        def answer(__: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            anything = Anything(next(self._seeds), Arguments("/"))
            for _ in range(30):
                if not context.is_active():
                    return
                yield anything.request(output)

        def answer_one(_: Iterator[bytes], __: grpc.ServicerContext) -> bytes:
            return Anything(next(self._seeds), Arguments("/")).request(output)

        streams = any(
            one.server_streaming
            for one in METHODS
            if method == f"/{one.containing_service.full_name}/{one.name}"
        )
        if streams:
            return grpc.stream_stream_rpc_method_handler(answer)
        return grpc.stream_unary_rpc_method_handler(answer_one)
