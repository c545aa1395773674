"""Golden trees: each file in ``trees`` is a tree, questions and the right answers, as text.

A tree is written by indentation: `name  topic PHYSICAL`, `name/`, `name/  link TARGET…`,
`name/  mount CLUSTER_ID`; what is below `deleted!` is removed. A question stands to the left of its
answer, two spaces or more between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path as File
from typing import assert_never

import pytest

from directory.namespace.entry import (
    DELETED_ID,
    ROOT_ID,
    Directory,
    Entry,
    Kind,
    Link,
    Mount,
    Topic,
)
from directory.namespace.keys import entry_key
from directory.namespace.listing import ListedTopic, list_page
from directory.namespace.lookup import (
    DirectoryAt,
    LinkAt,
    Missing,
    MountAt,
    TopicAt,
    Unreadable,
    lookup,
)
from directory.namespace.snapshot import Snapshot
from directory.store.base import Put
from directory.wire.entry_codec import ProtoCodec
from resolver.glob import Glob
from resolver.path import Path

TREES = sorted((File(__file__).parent / "trees").glob("*.txt"))
CODEC = ProtoCodec()


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (heading, lines), comments and empty lines left out."""
    heading, lines = "", list[str]()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            lines.append(line)
        else:
            if heading:
                yield heading, lines
            heading, lines = line.strip(), []
    yield heading, lines


def grow(lines: list[str]) -> list[Put]:
    """Returns the rows of a tree."""
    rows: list[Put] = []
    above = [(0, ROOT_ID)]  # (indentation of what is inside, directory id)
    for number, line in enumerate(lines, start=10):
        depth = len(line) - len(line.lstrip())
        while above[-1][0] > depth:
            above.pop()
        name, *what = line.split()
        if name == "deleted!":
            above.append((depth + 1, DELETED_ID))
            continue
        match what:
            case ["topic", physical_name]:
                entry: Entry = Topic(entry_id=number, physical_name=physical_name)
            case ["link", *targets]:
                entry = Link(entry_id=number, targets=tuple(map(Path.parse, targets)))
            case ["mount", cluster_id]:
                entry = Mount(entry_id=number, cluster_id=cluster_id)
            case []:
                entry = Directory(entry_id=number)
            case _:
                raise ValueError(line)
        key = entry_key(above[-1][1], entry.kind, name.rstrip("/"))
        rows.append(Put(key, CODEC.encode(entry)))
        if isinstance(entry, Directory):
            above.append((depth + 1, number))
    return rows


def shown(segments: tuple[str, ...]) -> str:
    return str(Path(segments))


def ask(snapshot: Snapshot, question: str) -> str:
    """Returns the answer to `/path` or `/path as KIND`."""
    path, _, kind = question.partition(" as ")
    prefer = Kind[kind.upper()] if kind else None
    found = lookup(snapshot, Path.parse(path).segments, prefer)
    match found:
        case TopicAt(record=record, has_container=has_container):
            topic = CODEC.decode(record)
            assert isinstance(topic, Topic)
            return f"topic {topic.physical_name}{', a container too' if has_container else ''}"
        case DirectoryAt(relative=relative):
            return f"directory {shown(relative)}"
        case LinkAt(relative=relative, link=link, rest=rest):
            targets = " ".join(map(str, link.targets))
            return f"link {shown(relative)} to {targets}{left(rest)}"
        case MountAt(relative=relative, mount=mount, rest=rest):
            return f"mount {shown(relative)} of {mount.cluster_id}{left(rest)}"
        case Missing(nearest=nearest):
            return f"missing below {shown(nearest)}"
        case Unreadable(relative=relative):
            return f"unreadable {shown(relative)}"
        case _:
            assert_never(found)


def left(rest: tuple[str, ...]) -> str:
    return f", left {'/'.join(rest)}" if rest else ""


def listed(snapshot: Snapshot, question: str) -> list[str]:
    """Returns the answer to `list /path [all below] [only KIND] [names GLOB] [with system]`."""
    arguments = re.fullmatch(
        r"list (?P<path>\S+)(?P<deep> all below)?(?: only (?P<kind>\w+))?"
        r"(?: names (?P<glob>\S+))?(?P<system> with system)?",
        question,
    )
    assert arguments, question
    directory_id = snapshot.find_directory(Path.parse(arguments["path"]).segments)
    assert directory_id is not None
    found = list_page(
        snapshot,
        directory_id,
        glob=Glob.parse(arguments["glob"]) if arguments["glob"] else None,
        kinds=[Kind[arguments["kind"].upper()]] if arguments["kind"] else [],
        include_system=bool(arguments["system"]),
        recursive=bool(arguments["deep"]),
    )
    assert found.after is None
    return [
        "/".join(one.relative) + ("" if isinstance(one, ListedTopic) else "/")
        for one in found.entries
    ]


def located(snapshot: Snapshot, physical_name: str) -> str:
    found = snapshot.locate(physical_name)
    if found is None:
        return "nowhere"
    return "removed" if found.relative is None else shown(found.relative)


def answers(snapshot: Snapshot, heading: str, lines: list[str]) -> list[str]:
    """Returns what the section should say, line by line."""
    questions = [re.split(r" {2,}", line.strip())[0] for line in lines]
    match heading.split(maxsplit=1)[0]:
        case "ask":
            return [f"{question}  {ask(snapshot, question)}" for question in questions]
        case "locate":
            return [f"{question}  {located(snapshot, question)}" for question in questions]
        case "list":
            return listed(snapshot, heading)
        case "mounts":
            return [f"{shown(path)}  {mount.cluster_id}" for path, mount in snapshot.mounts()]
        case "count":
            return [f"topics {snapshot.topic_count}, directories {snapshot.directory_count}"]
        case _:
            raise ValueError(heading)


@pytest.mark.parametrize("way", ["loaded", "applied"])
@pytest.mark.parametrize("file", TREES, ids=lambda file: file.stem)
def test_golden(file: File, way: str) -> None:
    (heading, lines), *rest = sections(file.read_text())
    assert heading == "tree"
    rows = grow(lines)
    if way == "loaded":
        in_order = sorted((row.key, row.value) for row in rows)
        snapshot = Snapshot.load(CODEC, "i", 1, [in_order[:3], in_order[3:]])
    else:
        snapshot = Snapshot.empty(CODEC, "i").apply(1, rows[::-1])
    assert not snapshot.unreadable_values
    assert len(rest) > 0
    for heading, lines in rest:
        written = [re.sub(r" {2,}", "  ", line.strip()) for line in lines]
        assert answers(snapshot, heading, lines) == written, heading


def test_there_are_golden_trees() -> None:
    assert len(TREES) >= 6
