"""R22: whatever servers say, a walk ends, within its limits, in a typed outcome."""

from __future__ import annotations

import contextlib
import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kdir.v1 import entry_pb2, error_pb2, resolve_pb2

from resolver import Resolver, TopicLocation, errors, reply_decoding
from resolver.endpoints import ServerHealth
from resolver.errors import KdirError
from resolver.path import Path
from resolver.resolution.state_machine import MAX_CALLS, ResolutionOptions, ResolutionStateMachine
from resolver.resolution.values import (
    AbsentResult,
    AnswerResult,
    FailedResult,
    Query,
    Reply,
    United,
)
from resolver.testing import MemoryDirectory, MemoryTransport
from resolver.transport import Method

SEGMENTS = ["a", "b", "bc", "c"]
SERVERS = [f"127.0.0.1:{20_000 + n}" for n in range(6)]
DEADLINE = 5.0

paths = st.lists(st.sampled_from(SEGMENTS), max_size=4).map(lambda parts: "/" + "/".join(parts))
wild = st.one_of(paths, paths, paths, st.text(max_size=8), st.just("/x" * 600))
numbers = st.integers(0, 2**32 - 1)
endpoints = st.lists(
    st.one_of(st.sampled_from(SERVERS), st.sampled_from(SERVERS), st.text(max_size=12)), max_size=4
)
ids = st.sampled_from(["kc-1", "kc-2", "kc-é", ""])
entries = st.builds(
    entry_pb2.Entry,
    path=wild,
    topic=st.one_of(st.none(), st.builds(entry_pb2.Topic, topic_id=st.binary(max_size=20))),
)
outcomes = st.one_of(
    st.builds(
        lambda entry, lifetime, index: resolve_pb2.Outcome(
            resolution=resolve_pb2.Resolution(
                entry=entry, lifetime_seconds=lifetime, authority_index=index
            )
        ),
        entries,
        numbers,
        st.integers(0, 2),
    ),
    st.builds(
        lambda kind, **fields: resolve_pb2.Outcome(
            referral=resolve_pb2.Referral(kind=kind, **fields)
        ),
        st.integers(0, 4),
        mount=wild,
        cluster_id=ids,
        epoch=st.integers(0, 2),
        endpoints=endpoints,
        lifetime_seconds=numbers,
        age_seconds=numbers,
    ),
    st.builds(
        lambda **fields: resolve_pb2.Outcome(rewrite=resolve_pb2.Rewrite(**fields)),
        link=wild,
        paths=st.lists(wild, max_size=4),
        mode=st.integers(0, 3),
        writes=st.integers(0, 3),
        fall_back_on_absent=st.booleans(),
        site_link=st.booleans(),
        lifetime_seconds=numbers,
    ),
    st.builds(
        lambda **fields: resolve_pb2.Outcome(absent=resolve_pb2.Absent(**fields)),
        nearest_directory=wild,
        lifetime_seconds=numbers,
    ),
    st.builds(
        lambda reason, message: resolve_pb2.Outcome(
            error=resolve_pb2.ErrorOutcome(reason=reason, message=message)
        ),
        st.one_of(st.sampled_from(error_pb2.ErrorReason.values()), st.just(9999)),
        st.text(max_size=10),
    ),
    st.just(resolve_pb2.Outcome()),
)
authorities = st.builds(
    lambda cluster_id, mount, epoch, revision, incarnation, age: resolve_pb2.Authority(
        cluster=entry_pb2.Cluster(cluster_id=cluster_id, mount=mount, epoch=epoch),
        revision=revision,
        incarnation=incarnation,
        age_seconds=age,
    ),
    ids,
    wild,
    st.integers(0, 2),
    st.integers(0, 5),
    st.sampled_from(["i1", "i2", "ї1"]),
    st.one_of(st.just(0.0), st.floats()),
)
failures = st.sampled_from(
    [
        errors.Unreachable("no"),
        errors.DeadlineExceeded("slow"),
        errors.NotReady("wait"),
        errors.NotAuthoritative("not mine"),
        errors.Internal("bug"),
        errors.Absent("liar"),
    ]
)
replies = st.one_of(
    st.builds(resolve_pb2.ResolveResponse, authority=authorities, outcome=outcomes), failures
)


def decoded(output: resolve_pb2.ResolveResponse | KdirError) -> Reply | KdirError:
    if isinstance(output, KdirError):
        return output.copy()
    try:
        return reply_decoding.decode_reply(output)
    except errors.Lame as error:
        return error


@settings(max_examples=600)
@given(
    path=paths,
    script=st.lists(replies, min_size=1, max_size=8),
    recursive=st.booleans(),
    split=st.booleans(),
    for_writes=st.booleans(),
    impatient=st.booleans(),
)
def test_R22_every_walk_ends_within_its_calls_in_a_typed_outcome(
    path: str, script: list[Any], recursive: bool, split: bool, for_writes: bool, impatient: bool
) -> None:
    rules = ResolutionOptions(
        tuple(SERVERS[:2]), recursive=recursive, gathers_unions=split, for_writes=for_writes
    )
    walk = ResolutionStateMachine(Path.parse(path), rules)
    calls = 0
    while isinstance(step := walk.next_query(), Query):
        assert 0 < step.share <= 1
        output = decoded(script[calls % len(script)])
        calls += 1
        assert calls <= MAX_CALLS
        if step.hurried and impatient:
            walk.on_slow()
        elif isinstance(output, KdirError):
            walk.on_error(output)
        else:
            walk.on_answer(output, {})
    match step:
        case AnswerResult(sender=sender, answer=answer):
            assert sender.mount.is_prefix_of(answer.path)
        case AbsentResult(sender=sender, path=owned):
            assert recursive or sender.mount.is_prefix_of(owned)
        case United(parts=parts):
            assert split
            assert parts
        case FailedResult(error=error):
            assert isinstance(error, KdirError)
            assert not isinstance(error, errors.Absent), "only an outcome says absent"
            assert len(error.attempts) >= calls


class Liars(MemoryTransport):
    """Servers that say random things and take random times, by a clock of their own."""

    def __init__(self, script: list[Any], seed: int) -> None:
        super().__init__()
        self.now = 0.0
        self._script = script
        self._random = random.Random(seed)

    def call(
        self,
        endpoint: str,
        method: Method,
        request: Any,
        timeout_seconds: float,
        *,
        cluster_id: str = "",
    ) -> Any:
        self.calls.append((endpoint, method.name))
        assert timeout_seconds > 0
        took = self._random.choice([0.0, 0.1, 1.0, 100.0])
        self.now += min(took, timeout_seconds)
        if took > timeout_seconds:
            raise errors.DeadlineExceeded("slow")
        output = self._random.choice(self._script)
        if isinstance(output, KdirError):
            raise output.copy()
        if method.response is resolve_pb2.BatchResolveResponse:
            outcomes = [self._random.choice(self._script) for _ in request.paths]
            return resolve_pb2.BatchResolveResponse(
                authorities=[output.authority],
                outcomes=[
                    one.outcome if not isinstance(one, KdirError) else resolve_pb2.Outcome()
                    for one in outcomes
                ][: self._random.choice([len(outcomes), len(outcomes), 0])],
            )
        return method.response.FromString(output.SerializeToString())


@settings(max_examples=300)
@given(
    asked=st.lists(paths, min_size=1, max_size=6),
    script=st.lists(replies, min_size=1, max_size=8),
    seed=st.integers(0, 1000),
)
def test_R22_the_client_keeps_its_limits_whichever_server_lies(
    asked: list[str], script: list[Any], seed: int
) -> None:
    transport = Liars(script, seed)
    with Resolver(
        SERVERS[:2],
        transport=transport,
        timeout_seconds=DEADLINE,
        clock=lambda: transport.now,
        health=ServerHealth(lambda: transport.now, shuffle=lambda _: None),
    ) as client:
        for path in asked:
            before, began = len(transport.calls), transport.now
            with contextlib.suppress(KdirError):
                assert isinstance(client.resolve(path), TopicLocation)
            assert len(transport.calls) - before <= MAX_CALLS
            assert transport.now - began <= DEADLINE + 0.02
        outcomes = client.resolve_many(asked)
        assert all(isinstance(one, TopicLocation | KdirError) for one in outcomes)
        for verb in (
            lambda: list(client.list(asked[0])),
            lambda: client.which("kc-1", "x"),
            lambda: client.owner_of(asked[0]),
        ):
            with contextlib.suppress(KdirError):
                verb()
        assert isinstance(client.trace(asked[0]).elapsed_seconds, float)


@settings(max_examples=300)
@given(noise=st.binary(max_size=300))
@example(noise=b"\x12\x02\x0a\x00")
def test_R22_the_decoder_takes_any_bytes(noise: bytes) -> None:
    from google.protobuf.message import DecodeError

    for kind in (resolve_pb2.ResolveResponse, resolve_pb2.BatchResolveResponse):
        try:
            message = kind.FromString(noise)
        except DecodeError:
            continue
        try:
            if isinstance(message, resolve_pb2.ResolveResponse):
                reply_decoding.decode_reply(message)
            else:
                list(reply_decoding.decode_batch(message, [Path()] * len(message.outcomes)))
        except errors.Lame:
            pass


trees = st.lists(paths.filter(lambda path: path != "/"), max_size=5, unique=True)


@settings(max_examples=150)
@given(mounts=trees, topics=st.lists(paths, max_size=6, unique=True), asked=paths)
def test_honest_servers_give_the_same_answer_from_every_start(
    mounts: list[str], topics: list[str], asked: str
) -> None:
    """The oracle: the deepest mount that is a prefix owns the path, and has the topic or not."""
    with MemoryDirectory() as directory:
        directory.cluster("/")
        for mount in mounts:
            directory.cluster(mount)
        for topic in topics:
            if topic not in ("/", *mounts):
                directory.topic(topic)
        wanted = Path.parse(asked)
        owner = max(
            (
                Path.parse(mount)
                for mount in ["/", *mounts]
                if Path.parse(mount).is_prefix_of(wanted)
            ),
            key=len,
        )
        seen = set()
        for start in ["/", *mounts]:
            client = directory.resolver(start)
            for _ in range(2):
                (found,) = client.resolve_many([asked])
                if isinstance(found, TopicLocation):
                    seen.add((found.mount, found.path, found.kind))
                else:
                    assert isinstance(found, errors.Absent)
                    nearest = found.metadata["nearest_directory"]
                    seen.add((found.metadata["mount"], "absent", nearest))
                client.forget()
        assert len(seen) == 1
        assert seen.pop()[0] == str(owner)
