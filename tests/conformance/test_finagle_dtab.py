"""Links, by the cases of Finagle's naming (``finagle_dtab.json``).

A rule ``/s => /a | /b`` is a link at ``/s`` with the targets ``/a`` and ``/b``; of several rules
for one prefix the later one is asked first. What the rules lead to in the end (``/$/inet/8080``) is
a cluster that is mounted where they point. The links are made by kdir's own planning, looked up and
answered by its server's own code, and walked by its client's: nothing here follows a link itself.

Finagle's fallback goes on when a name is *not there*, so the links say ``fall_back_on_absent``.
``$`` is a cluster that has the name and nothing in it, ``!`` one that refuses to say, and a pending
name one that is not ready.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Literal, assert_never, cast
from unittest import mock

import pytest
from kdir.v1 import resolve_pb2

from directory.api.resolve_answers import ResolveAnswers
from directory.api.visible_tree import OpenTree
from directory.federation.referral import Direction, Referral
from directory.namespace.command import CreateDirectory, CreateLink, CreateMount
from directory.namespace.entry import Link, LinkMode, Mount
from directory.namespace.keys import entry_key
from directory.server.cluster import Cluster as ServedCluster
from directory.server.config import Limits
from directory.store.base import Put
from resolver import reply_decoding
from resolver.errors import (
    Internal,
    InvalidArgument,
    InvalidPath,
    KdirError,
    NotReady,
    PermissionDenied,
    WalkFailed,
)
from resolver.path import ROOT, Path
from resolver.resolution import state_machine
from resolver.resolution.state_machine import (
    MAX_HOPS,
    ResolutionOptions,
    ResolutionStateMachine,
)
from resolver.resolution.values import (
    AbsentResult,
    AnswerResult,
    FailedResult,
    Query,
    Reply,
    United,
)
from tests.conformance import dtab
from tests.conformance.cases import NOT_UNDERSTOOD, Row, cases, run, section_rows
from tests.conformance.dtab import Leaf, Many, Nothing, Tree, Weighted
from tests.support.trees import Cluster

_LANGUAGE = {"parse_tree", "parse_dentry", "parse_dtab"}
_ALGEBRA = {"concat", "strip_prefix"}
_BINDING = {"bind", "resolve", "bind_tree", "bind_tree_state", "lookup_system", "tree_eval"}
_NAMED = {"bind", "resolve", "lookup_system", "lookup_once"}
"""Kinds of rows whose input is one name."""
_PENDING, _ERROR = Leaf(("is pending",)), Leaf(("is error",))
"""States of a name; no rule can write their blanks."""
_SIGNS = {"~": "NEG", "$": "EMPTY", "!": "FAIL"}
_OUTCOMES = {*_SIGNS.values(), "PENDING", "ERROR", "ERROR_BAD_PATH", "ERROR_MAX_DEPTH"}
_STATES: dict[str, Tree] = {
    "PENDING": _PENDING, "ERROR": _ERROR,
    "NEG": Nothing("~"), "EMPTY": Nothing("$"), "FAIL": Nothing("!"),
}  # fmt: skip


def read(text: str) -> Iterator[Row]:
    """Yields the rows of all sections, each with the name of its section."""
    return section_rows(text, ())


# -- which rows are run --------------------------------------------------------------------------


def category(row: Row) -> str | None:
    if row["section"] != "cases":
        return NOT_UNDERSTOOD
    kind = row["kind"]
    if kind in _LANGUAGE:
        return "dtab-language"
    if kind in _ALGEBRA:
        return "dtab-algebra"
    if kind == "parse_path":
        # Finagle's names may hold more characters, and escapes; what it refuses, kdir refuses too.
        wider = row["expected"] != "ERROR" and re.search(r"[^/a-zA-Z0-9._-]", row["input"])
        return "dtab-language" if wider else None
    if kind == "prefix_matches":
        return "wildcard-prefixes" if "*" in dtab.segments(row["input"][0]) else None
    if kind not in _BINDING and kind != "lookup_once" and depth_of(kind) is None:
        return NOT_UNDERSTOOD
    rules, question = rules_of(row), question_of(row)
    name = _unfit(rules, question)
    if name is None and min(_hops(question, rules), depth_of(kind) or MAX_HOPS + 1) > MAX_HOPS:
        return "long-chains"
    # To an evaluation what fails is bound to nothing, as what is absent.
    return None if kind == "tree_eval" and name == "unanswered-union" else name


def depth_of(kind: str) -> int | None:
    """Returns the depth to which a kind of row limits the lookup; None = it does not."""
    limited = re.fullmatch(r"resolve_max_depth_(\d+)", kind)
    return int(limited[1]) if limited else None


Rules = list[tuple[tuple[str, ...], Tree]]


def _unfit(rules: Rules, question: Tree) -> str | None:
    prefixes = {prefix for prefix, _ in rules}
    trees = [question, *(tree for _, tree in rules)]
    if any(dtab.weighted(tree) for tree in trees):
        return "weights"
    if any("*" in prefix for prefix in prefixes):
        return "wildcard-prefixes"
    if () in prefixes or question == Leaf(()):
        return "root-prefix"
    if any(one != other and other[: len(one)] == one for one in prefixes for other in prefixes):
        return "nested-prefixes"
    ends = [end for tree in trees for end in dtab.leaves(tree)]
    if any(isinstance(end, Leaf) and _is_system(end.segments) for end in ends):
        return "system-names"
    if any(_union_before_others(tree) for tree in trees):
        return "union-inside-fallback"
    if any(_pending_before_others(tree, rules) for tree in trees):
        return "pending-in-fallback"
    reached = _reached([question], rules)
    if any(_circular_fallback(prefix, rules) for prefix in reached):
        return "circular-fallback"
    trees = [question, *(tree for prefix, tree in rules if prefix in reached)]
    unions = [union for tree in trees for union in dtab.nodes(tree, "&")]
    return "unanswered-union" if any(_is_unanswered(union, rules) for union in unions) else None


def _is_system(segments: tuple[str, ...]) -> bool:
    if segments[:1] != ("$",):
        return False
    return segments[1:2] != ("fail",) and (segments[1:2] != ("inet",) or len(segments) < 3)


def _is_host(host: str, port: str) -> bool:
    """True for ``/$/inet/HOST/PORT``; ``/$/inet/PORT`` has what follows as the rest of a path."""
    return port.isdigit() and not host.isdigit()


def _union_before_others(tree: Tree) -> bool:
    return any(
        isinstance(branch, Many) and branch.sign == "&"
        for fallback in dtab.nodes(tree, "|")
        for branch in fallback.branches[:-1]
    )


def _pending_before_others(tree: Tree, rules: Rules) -> bool:
    """True if a fallback would wait for one branch while a later one is there."""
    names = dict(rules)

    def pending(branch: Tree) -> bool:
        ends = [names.get(e.segments, e) if isinstance(e, Leaf) else e for e in dtab.leaves(branch)]
        return all(end == _PENDING for end in ends)

    return any(
        pending(branch) and not all(map(pending, fallback.branches[place + 1 :]))
        for fallback in dtab.nodes(tree, "|")
        for place, branch in enumerate(fallback.branches[:-1])
    )


def _next_rules(tree: Tree, rules: Rules) -> set[tuple[str, ...]]:
    """Returns the prefixes of the rules that a tree leads to at once."""
    ends = [end.segments for end in dtab.leaves(tree) if isinstance(end, Leaf)]
    return {prefix for prefix, _ in rules for end in ends if end[: len(prefix)] == prefix}


def _reached(trees: list[Tree], rules: Rules) -> set[tuple[str, ...]]:
    """Returns the prefixes of the rules that trees lead to, over others as well."""
    left, reached = list(trees), set[tuple[str, ...]]()
    while left:
        new = _next_rules(left.pop(), rules) - reached
        reached |= new
        left += [tree for prefix, tree in rules if prefix in new]
    return reached


def _circular_fallback(prefix: tuple[str, ...], rules: Rules) -> bool:
    """True if a rule that leads back to itself has something else to fall back to."""
    trees = [tree for own, tree in rules if own == prefix]
    has_more = len([one for tree in trees for one in choices(tree)]) > 1
    return has_more and prefix in _reached(trees, rules)


def _hops(tree: Tree, rules: Rules, above: tuple[tuple[str, ...], ...] = ()) -> int:
    """Returns how many links and mounts a name leads through at most; 0 = it leads in a circle."""
    if isinstance(tree, Many):
        return 1 + max(_hops(branch, rules, above) for branch in tree.branches)
    for prefix in _next_rules(tree, rules):
        if prefix in above:
            return 0
        ends = [end for own, to in rules if own == prefix for end in choices(to)]
        return 1 + max(_hops(end, rules, (*above, prefix)) for end in ends)
    return 1


def _is_unanswered(union: Many, rules: Rules) -> bool:
    """True if nothing of a union is found, and some of it is absent (or refused), some failed."""
    world = World(rules, leaves_are_bound=False)
    found: list[object] = []
    for branch in union.branches:
        try:
            found.append(world.ask(world.path_of(branch)))
        except KdirError as error:
            found.append(error)
    is_absent = [one is None or isinstance(one, PermissionDenied) for one in found]
    failed = [isinstance(one, KdirError) for one in found]
    return any(is_absent) and any(failed) and all(map(operator.or_, is_absent, failed))


def rules_of(row: Row) -> Rules:
    """Returns the rules that hold: of a dtab, or of the states that the names of a tree are in."""
    if row["kind"] == "bind_tree_state":
        states = row["input"]["state"].items()
        return [(dtab.segments(name), _state(state)) for name, state in states]
    return [dtab.rule(text) for text in row["dtab"] or ()]


def _state(text: str) -> Tree:
    return _STATES.get(text.strip()) or dtab.tree(text.removeprefix("->"))


def question_of(row: Row) -> Tree:
    """Returns the tree, or the name, that is asked for."""
    if row["kind"] == "bind_tree_state":
        return dtab.tree(row["input"]["tree"])
    if row["kind"] in {"tree_eval", "bind_tree"}:
        return dtab.tree(row["input"])
    return Leaf(dtab.segments(row["input"]))


# -- rules as links of a cluster -----------------------------------------------------------------


class World:
    """A cluster at ``/`` whose links are the rules, with the clusters that they lead to."""

    def __init__(self, rules: Rules, *, leaves_are_bound: bool) -> None:
        self.cluster = Cluster("/")
        self.bound: dict[str, str] = {}
        self.residuals: dict[str, Path] = {}
        """By bound name: what of the path that was asked for lies below it."""
        self._trees: dict[Path, Tree] = {}
        """What each path stands for."""
        self._leaves_are_bound = leaves_are_bound
        self._numbers = itertools.count(1)
        grouped: dict[tuple[str, ...], list[Tree]] = {}
        for prefix, tree in rules:
            grouped.setdefault(prefix, []).append(tree)
        for prefix, trees in grouped.items():
            # The later rule comes first; the earlier ones are what it falls back to.
            targets = [self.path_of(one) for tree in reversed(trees) for one in choices(tree)]
            self._link(Path(tuple(map(legal, prefix))), targets, LinkMode.FIRST)

    def path_of(self, tree: Tree) -> Path:
        """Returns where a tree is to be found: a link of its own for each ``|`` and ``&``."""
        where = self._place(tree)
        self._trees[where] = tree
        return where

    def _place(self, tree: Tree) -> Path:
        match tree:
            case Leaf(segments=("$", "inet", host, port, *rest)) if _is_host(host, port):
                return self._mount(f"inet {host}:{port}", f"{host}:{port}").join(map(legal, rest))
            case Leaf(segments=("$", "inet", name, *rest)):
                return self._mount(f"inet {name}", name).join(map(legal, rest))
            case Leaf(segments=("$", "fail", *rest)):
                return self._mount("!", "").join(map(legal, rest))
            case Leaf(segments=segments) if tree == _PENDING:
                return self._mount("pending", "")
            case Leaf(segments=segments) if tree == _ERROR:
                return self._mount("error", "")
            case Leaf(segments=segments):
                if self._leaves_are_bound:
                    text = "/" + "/".join(segments)
                    return self._mount(f"leaf {text}", text)
                return Path(tuple(map(legal, segments)))
            case Nothing(sign="~"):
                return Path(("kdir-nowhere", str(next(self._numbers))))
            case Nothing(sign=sign):
                return self._mount(sign, "")
            case Many(sign=sign, branches=branches):
                where = Path(("kdir-tree", str(next(self._numbers))))
                mode = LinkMode.FIRST if sign == "|" else LinkMode.UNION
                self._link(where, [self.path_of(branch) for branch in branches], mode)
                return where
            case Weighted():
                raise AssertionError("rows with weights are not run")
            case _:
                assert_never(tree)

    def _link(self, where: Path, targets: Sequence[Path], mode: LinkMode) -> None:
        self.cluster.do(CreateDirectory(path=where.parent, make_parents=True))
        command = CreateLink(
            path=where,
            targets=tuple(dict.fromkeys(targets)),
            mode=mode,
            fall_back_on_absent=True,
        )
        try:
            self.cluster.do(command)
        except InvalidArgument:
            # kdir refuses a link to below itself when it is made. The walk must end all the same:
            # links of two clusters can do to each other what this one does to itself.
            relative = where.segments
            node = self.cluster.snapshot.nodes.get(
                cast("int", self.cluster.snapshot.find_directory(relative[:-1]))
            )
            assert node is not None
            self._force(node.entry_id, relative[-1], command)

    def _force(self, parent_id: int, name: str, command: CreateLink) -> None:
        link = Link(
            entry_id=self.cluster.context.new_id(),
            targets=command.targets,
            mode=command.mode,
            fall_back_on_absent=True,
        )
        record = self.cluster.codec.encode(link)
        writes = (Put(entry_key(parent_id, Link.kind, name), record),)
        assert self.cluster.rows.commit((), writes)
        self.cluster.snapshot = self.cluster.snapshot.apply(self.cluster.rows.revision, writes)

    def _mount(self, cluster: str, name: str) -> Path:
        """A cluster of its own, mounted once; ``name`` is what the case calls it."""
        where = Path(("kdir-bound", legal(cluster)))
        if self.cluster.entry(str(where)) is None:
            self.cluster.do(
                CreateDirectory(path=where.parent, make_parents=True),
                CreateMount(path=where, cluster_id=cluster, endpoints=(f"{legal(cluster)}:1",)),
            )
            self.bound[f"{legal(cluster)}:1"] = name
        return where

    # -- asking ----------------------------------------------------------------------------------

    def look_up(self, path: Path) -> Tree:
        """Returns the tree that a path is replaced by, in ``written`` form; ``~`` = by none."""
        response = resolve_pb2.ResolveResponse()
        _served(self.cluster).resolve(path, response.outcome)
        found = [self._tree_at(Path.parse(text)) for text in response.outcome.rewrite.paths]
        return _joined("|", found) if found else Nothing("~")

    def _tree_at(self, path: Path) -> Tree:
        place = max((one for one in self._trees if one.is_prefix_of(path)), key=len, default=path)
        return written(self._trees.get(place, Leaf(())), path.segments[len(place) :])

    def ask(self, path: Path, most_hops: int = MAX_HOPS) -> set[str] | None:
        """Returns what a path is bound to: all that a union leads to; None = nothing has the name.
        Fails after ``most_hops`` links and mounts.

        Raises:
            KdirError: it cannot be said.
        """
        walk = ResolutionStateMachine(
            path, ResolutionOptions(start=("root:1",), gathers_unions=True)
        )
        with mock.patch.object(state_machine, "MAX_HOPS", most_hops):
            while isinstance(step := walk.next_query(), Query):
                try:
                    walk.on_answer(self._reply(step), {})
                except KdirError as error:
                    walk.on_error(error)
        match step:
            case AnswerResult():
                return self._name_of(step)
            case AbsentResult():
                return None
            case United(parts=parts):  # what did not answer is said beside it
                names = [name for name in map(self._name_of, parts) if name is not None]
                return set().union(*names) if names else None
            case FailedResult():
                raise step.error
            case _:
                assert_never(step)

    def _name_of(self, found: AnswerResult) -> set[str] | None:
        name = self.bound.get(found.sender.server)
        if not name:  # a directory above a rule is to Finagle no name
            return None if name is None else set()
        self.residuals[name] = Path(found.answer.path.segments[len(found.sender.mount.segments) :])
        return {name}

    def _reply(self, ask: Query) -> Reply:
        """Returns what the asked server says, by its own code, over the contract's messages."""
        if ask.endpoint == "root:1":
            response = resolve_pb2.ResolveResponse()
            _served(self.cluster).resolve(ask.path, response.outcome)
            authority = response.authority
            authority.cluster.cluster_id, authority.cluster.mount = "kc-root", "/"
            return reply_decoding.decode_reply(response)
        return self._childs_reply(ask)

    def _childs_reply(self, ask: Query) -> Reply:
        mount = next(
            (path, mount)
            for path, mount in self.cluster.snapshot.mounts()
            if mount.endpoints == (ask.endpoint,)
        )
        cluster_id = mount[1].cluster_id
        if cluster_id == "!":
            raise PermissionDenied(f"{ask.path} is nobody's to see")
        if cluster_id == "pending":
            raise NotReady(f"{ask.endpoint} has not loaded yet")
        if cluster_id == "error":
            raise Internal(f"{ask.endpoint} failed")
        response = resolve_pb2.ResolveResponse()
        response.outcome.resolution.entry.path = str(ask.path)
        response.outcome.resolution.entry.directory.SetInParent()
        authority = response.authority
        authority.server = ask.endpoint
        authority.cluster.cluster_id = cluster_id
        authority.cluster.mount = str(Path(mount[0]))
        authority.cluster.epoch = mount[1].epoch
        return reply_decoding.decode_reply(response)


def _served(cluster: Cluster) -> ResolveAnswers:
    """The server's answers from the snapshot; of the running server only what they need."""

    def down(where: Path, mount: Mount) -> Referral:
        return Referral(
            Direction.DOWN, where, mount.cluster_id, "", mount.epoch, mount.endpoints, 0
        )

    limits = Limits(answer_ttl_seconds=60, negative_ttl_seconds=5, referral_ttl_seconds=60)
    served = SimpleNamespace(
        mount=ROOT,
        mount_at=lambda _: ROOT,
        config=SimpleNamespace(limits=limits, links=()),
        federation=SimpleNamespace(down=down),
    )
    return ResolveAnswers(cast("ServedCluster", served), OpenTree(cluster.snapshot, ROOT, "root"))


def choices(tree: Tree) -> tuple[Tree, ...]:
    """Returns the branches of a fallback in their order; any other tree is the only one."""
    return tree.branches if isinstance(tree, Many) and tree.sign == "|" else (tree,)


def written(tree: Tree, rest: tuple[str, ...] = ()) -> Tree:
    """Returns a tree in one way of writing it, each name followed by the rest of a path."""
    match tree:
        case Leaf(segments=("$", "fail", *_)):
            return Nothing("!")
        case Leaf(segments=segments):
            return Leaf((*map(legal, segments), *rest))
        case Many(sign=sign, branches=branches):
            return _joined(sign, [written(branch, rest) for branch in branches])
        case _:
            return tree


def _joined(sign: Literal["|", "&"], trees: Sequence[Tree]) -> Tree:
    flat = [
        branch
        for tree in trees
        for branch in (tree.branches if isinstance(tree, Many) and tree.sign == sign else (tree,))
    ]
    branches = tuple(dict.fromkeys(flat))
    return branches[0] if len(branches) == 1 else Many(sign, branches)


def legal(segment: str) -> str:
    """Returns a segment that is valid in kdir for one that is valid in Finagle; different ones stay
    different.
    """
    safe = "".join(
        c if c.isascii() and (c.isalnum() or c in ".-") else f"_{ord(c):x}_" for c in segment
    )
    is_taken = safe in {".", "..", ""} or safe.startswith("kdir-")
    return f"_{safe}" if is_taken else safe


# -- the rows ------------------------------------------------------------------------------------


def check(row: Row) -> None:
    """Holds kdir to one case."""
    kind = row["kind"]
    if kind == "parse_path":
        check_path(row["input"], row["expected"])
        return
    if kind == "prefix_matches":
        prefix, path = (Path(tuple(map(legal, dtab.segments(text)))) for text in row["input"])
        matches = prefix.is_prefix_of(path)
        assert matches is row["expected"]
        return
    is_name = kind in _NAMED or depth_of(kind) is not None
    if is_name and not row["input"].startswith("/"):
        check_path(row["input"], row["expected"])  # refused before anything is looked up
        return
    world = World(rules_of(row), leaves_are_bound=kind == "tree_eval")
    asked = world.path_of(question_of(row))
    expected = row["expected"]
    if isinstance(expected, str):
        expected = _SIGNS.get(expected, expected)
    if kind == "lookup_once" and isinstance(expected, str) and expected not in _OUTCOMES:
        assert world.look_up(asked) == written(dtab.tree(expected))
        return
    compare(world, asked, expected, kind)


def check_path(text: str, expected: object) -> None:
    if expected in ("ERROR", "ERROR_BAD_PATH"):
        with pytest.raises(InvalidPath):
            Path.parse(text)
    else:
        assert list(Path.parse(text).segments) == expected


def compare(world: World, asked: Path, expected: Any, kind: str) -> None:
    depth = depth_of(kind)
    try:
        found = world.ask(asked, MAX_HOPS if depth is None else depth)
    except WalkFailed:
        assert expected == "ERROR_MAX_DEPTH"
    except NotReady:
        assert expected == "PENDING"
    except Internal:
        assert expected == "ERROR"
    except PermissionDenied:
        # An evaluation that fails is bound to nothing; a resolution says that it failed.
        assert expected is None if kind == "tree_eval" else expected == "FAIL"
    else:
        assert found == wanted_of(expected)
        if isinstance(expected, dict):
            check_residual(world, expected)


def check_residual(world: World, expected: dict[str, str]) -> None:
    """Holds a bound name to the rest of the path that the row states, by either name of it."""
    names = {"bound", "residual", "path"}
    assert expected.keys() <= names, f"a bound name has {sorted(names)}, found {sorted(expected)}"
    for name in expected.keys() & {"residual", "path"}:
        wanted = Path(tuple(map(legal, dtab.segments(expected[name]))))
        assert world.residuals[_address(expected["bound"])] == wanted


def wanted_of(expected: Any) -> set[str] | None:
    if expected in (None, "NEG"):
        return None
    if expected == "EMPTY":
        return set()
    if isinstance(expected, dict):
        return {_address(expected["bound"])}
    if isinstance(expected, str) and expected.startswith("/$/inet/"):
        return {_address(expected)}
    assert isinstance(expected, list), expected
    return {_address(one) for one in expected}


def _address(text: str) -> str:
    """Returns a bound name, which may be written ``host:port``, ``host/port`` or as its path."""
    name = text.removeprefix("/$/inet/")
    host, slash, port = name.partition("/")
    return f"{host}:{port}" if slash and _is_host(host, port) else name


@pytest.mark.parametrize("row", cases("finagle_dtab", "finagle_dtab.json", read, category))
def test_row(row: Row) -> None:
    run(check, row)
