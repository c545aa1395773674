"""Imports go one way, and what is pure stays pure.

Every import counts, wherever it stands: inside a function and for types only, too.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Layer:
    """Rule for the modules below `name`: what they may not import, or the only things that they
    may.
    """

    name: str
    forbidden: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = None


# Computation only: nothing here can read a clock, a file, a socket, the environment or chance.
_HARMLESS = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "base64",
        "binascii",
        "bisect",
        "collections",
        "contextlib",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "immutables",
        "ipaddress",
        "itertools",
        "json",
        "math",
        "operator",
        "re",
        "string",
        "struct",
        "textwrap",
        "threading",
        "types",
        "typing",
        "unicodedata",
        "zlib",
    }
)
_PURE = frozenset(
    {
        "directory.access",
        "directory.namespace",
        "directory.store.base",  # the contract of a store, which plans are written for
        "directory.store.transaction_limits",
        "resolver.units",
        "resolver.setting_types",
        "resolver.errors",
        "resolver.glob",
        "resolver.host_port",
        "resolver.kafka.client_settings",
        "resolver.path",
        "resolver.printable",
        "resolver.resolution",
        "resolver.revision_token",
        "resolver.deadline_shares",
        "resolver.topic_names",
    }
)
# Modules that are planned and do not exist yet.
_PLANNED: frozenset[str] = frozenset()
_OUTSIDE = frozenset({"bench", "deploy", "tests"})

LAYERS = (
    Layer("resolver", forbidden=_OUTSIDE | {"directory"}),
    Layer("directory", forbidden=_OUTSIDE),
    *(Layer(name, allowed=_HARMLESS | _PURE) for name in sorted(_PURE)),
)
# A package that only one part may import, so that the rest runs without it.
RESERVED = {"pyspark": "resolver.index", "deltalake": "resolver.index", "duckdb": "resolver.index"}
# Builtins with which even a module that imports nothing reaches out.
_REACHING = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})


def within(module: str, names: AbstractSet[str]) -> bool:
    """True if `module` is one of `names` or lies below one."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yields every module of the two packages, with its file."""
    for path in sorted(root.glob("resolver/**/*.py")) + sorted(root.glob("directory/**/*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(tree: ast.AST, module: str, *, package: bool) -> Iterator[tuple[int, str]]:
    """Yields the line and the full name of each import; `from a import b` may mean the
    module a.b.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            # One dot is the package itself, each further dot is one up.
            keep = len(base) - node.level + package if node.level else 0
            source = ".".join([*base[:keep], *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def reaching(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the calls by which code without imports reaches out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id


def violations(root: Path) -> list[str]:
    """Returns each import that breaks a rule, as `file:line: module imports name`."""
    return [
        f"{path.relative_to(root)}:{line}: {module} {what}"
        for module, path in modules(root)
        for line, what in _violations_of(module, path)
    ]


def _violations_of(module: str, path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    layers = [layer for layer in LAYERS if within(module, {layer.name})]
    for line, name in imported(tree, module, package=path.name == "__init__.py"):
        owner = RESERVED.get(name.split(".")[0])
        if (
            any(within(name, layer.forbidden) for layer in layers)
            or any(
                layer.allowed is not None and not within(name, layer.allowed) for layer in layers
            )
            or (owner is not None and not within(module, {owner}))
        ):
            yield line, f"imports {name}"
    if within(module, _PURE):
        yield from ((line, f"calls {name}") for line, name in reaching(tree) if name in _REACHING)


def test_imports_go_one_way_and_pure_modules_stay_pure() -> None:
    assert violations(ROOT) == []


def test_the_rules_name_modules_that_exist() -> None:
    # A rule for a module that was renamed would hold for nothing.
    names = {module for module, _ in modules(ROOT)}
    assert (_PURE | set(RESERVED.values())) - names == _PLANNED


@pytest.mark.parametrize(
    ("file", "code", "found"),
    [
        ("resolver/client.py", "import directory", "imports directory"),
        ("resolver/client.py", "from directory.store import base", "imports directory.store.base"),
        ("resolver/cli/ls.py", "def f():\n    import tests.fakes", "imports tests.fakes"),
        ("directory/replica.py", "from deploy.local import kafka", "imports deploy.local.kafka"),
        ("directory/replica.py", "import pyspark.sql", "imports pyspark.sql"),
        ("resolver/cli/find.py", "import duckdb", "imports duckdb"),
        ("resolver/path.py", "import time", "imports time"),
        ("resolver/path.py", "from ..resolver import client", "imports resolver.client"),
        ("resolver/path.py", "from . import client", "imports resolver.client"),
        (
            "resolver/resolution/state_machine.py",
            "from kdir.v1 import entry_pb2",
            "imports kdir.v1.entry_pb2",
        ),
        ("directory/namespace/entry.py", "import grpc", "imports grpc"),
        ("directory/namespace/entry.py", "import google.protobuf", "imports google.protobuf"),
        ("directory/namespace/__init__.py", "from .. import replica", "imports directory.replica"),
        ("directory/namespace/entry.py", "open('x')", "calls open"),
        ("directory/access/grants.py", "from datetime import datetime", "imports datetime"),
    ],
)
def test_a_bad_import_is_found(tmp_path: Path, file: str, code: str, found: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert [found in violation for violation in violations(tmp_path)] == [True]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("directory/replica.py", "import time\nfrom resolver.path import Path\nimport grpc"),
        ("directory/namespace/entry.py", "from resolver.path import Path\nimport collections.abc"),
        ("directory/namespace/__init__.py", "from .entry import Entry\nfrom . import entry"),
        ("directory/namespacing.py", "import time"),
        ("resolver/index/spark_source.py", "import pyspark"),
    ],
)
def test_a_good_import_is_not(tmp_path: Path, file: str, code: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert violations(tmp_path) == []


def test_only_the_tree_of_a_caller_searches_the_tree() -> None:
    """Other readers ask ``visible_tree.py``, which leaves out what is hidden from the caller."""
    searching = {"lookup", "list_page", "locate_entry"}
    # A dry run compares the tree before a change with the one after it, both of them whole.
    allowed = {"visible_tree.py", "dry_run.py"}
    found = {
        (path.name, alias.name)
        for path in (ROOT / "directory" / "api").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and path.name not in allowed
        for alias in node.names
        if alias.name in searching and str(node.module).startswith("directory.namespace")
    }
    assert found == set()


def test_a_server_without_a_kafka_needs_no_client_of_kafka() -> None:
    """The client is an extra: a directory that only has others below it is installed without."""
    code = (
        "import sys; sys.modules['confluent_kafka'] = None; "
        "import directory.server.process, directory.server.metrics.prometheus"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
