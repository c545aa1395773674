"""Measures how the modules of ``directory/`` and ``resolver/`` import each other.

``python -m deploy.tools.import_graph`` prints the figures; with ``--arrows`` also each circle and
each import that runs upward. ``tests/repository/test_import_graph.py`` holds them.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("directory", "resolver")

LAYERS: Final = (
    ("resolver.units", "resolver.errors", "resolver.glob", "resolver.host_port",
     "resolver.path", "resolver.printable", "resolver.resolution", "resolver.revision_token",
     "resolver.deadline_shares", "resolver.topic_names"),
    ("resolver",),
    ("resolver.changes", "resolver.index", "resolver.kafka"),
    ("resolver.cli",),
    ("directory.store.base", "directory.store.transaction_limits"),
    ("directory.access",),
    ("directory.namespace",),
    ("directory.wire",),
    ("directory.server.authentication",
     "directory.server.certificates", "directory.server.config_security",
     "directory.server.feature_levels", "directory.server.logs",
     "directory.server.metrics.instrumentation", "directory.server.principal_mapping",
     "directory.server.shared_channels", "directory.server.toml_table",
     "directory.api.rpc.call_context"),
    ("directory.store",),
    ("directory.change_log.settings", "directory.server.config", "directory.server.config_kafka",
     "directory.kafka.own_client_settings"),
    ("directory.federation",),
    ("directory.kafka",),
    ("directory.maintenance",),
    ("directory.change_log",),
    ("directory.api.rpc",),
    ("directory.server",),
    ("directory.api",),
    ("directory.__main__", "directory.server.command_line", "directory.server.metrics",
     "directory.server.process", "directory.server.supervisor"),
)  # fmt: skip
"""From the lowest to the topmost. A module is in the layer that lists its name or, failing that,
the longest name of a package around it. An import goes down or stays in its layer.
"""


@dataclass(frozen=True, slots=True)
class ImportGraph:
    """Graph of imports between modules, wherever they are written: inside functions and for types
    only, too.
    """

    imports: Mapping[str, AbstractSet[str]]
    package_files: AbstractSet[str]
    """Names of packages; their ``__init__.py`` do not count as modules."""

    @property
    def modules(self) -> list[str]:
        """The modules without the package files, by name."""
        return sorted(self.imports.keys() - self.package_files)

    def with_one_importer(self) -> list[str]:
        """Returns the modules that exactly one other imports."""
        counts = Counter(name for names in self.imports.values() for name in names)
        return [name for name in self.modules if counts[name] == 1]

    def upward(self) -> list[tuple[str, str]]:
        """Returns the imports whose target is in a higher layer: from, to."""
        return [
            (name, target)
            for name in self.modules
            for target in sorted(self.imports[name] - self.package_files)
            if layer_of(target) > layer_of(name)
        ]

    def circles(self) -> list[list[str]]:
        """Returns the sets of modules that import each other, directly or through others."""
        reachable = {name: self._reachable(name) for name in self.imports}
        circles = {
            frozenset(one for one in reachable[name] if name in reachable[one])
            for name in self.imports
            if name in reachable[name]
        }
        return sorted(sorted(circle) for circle in circles)

    def _reachable(self, name: str) -> set[str]:
        seen: set[str] = set()
        left = list(self.imports[name])
        while left:
            one = left.pop()
            if one not in seen:
                seen.add(one)
                left.extend(self.imports[one])
        return seen

    def same_names(self) -> dict[str, list[str]]:
        """Returns the file names that several packages have, with the modules of that name."""
        by_name: dict[str, list[str]] = {}
        for module in self.modules:
            by_name.setdefault(module.rpartition(".")[2], []).append(module)
        return {name: modules for name, modules in sorted(by_name.items()) if len(modules) > 1}


def layer_of(module: str) -> int:
    """Returns the number of a module's layer; the lowest is 0.

    Raises:
        LookupError: No layer names the module or a package that it is in.
    """
    name = module
    while name:
        for number, names in enumerate(LAYERS):
            if name in names:
                return number
        name = name.rpartition(".")[0]
    raise LookupError(f"{module}: no layer has it; add it or its package to LAYERS")


def read_imports(root: Path = ROOT) -> ImportGraph:
    """Returns the graph of the two packages below ``root``."""
    files: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return ImportGraph(
        imports={
            module: set(_imported(ast.parse(path.read_text()), files.keys())) - {module}
            for module, path in files.items()
        },
        package_files={module for module, path in files.items() if path.name == "__init__.py"},
    )


def _imported(tree: ast.AST, modules: AbstractSet[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                # `from a import b` means the module a.b where there is one.
                full = f"{node.module}.{alias.name}"
                if full in modules or node.module in modules:
                    yield full if full in modules else node.module


def names_at_top(root: Path = ROOT, package: str = "directory") -> list[str]:
    """Returns the modules and packages directly in a package's folder, without ``__init__.py`` and
    ``__main__.py``, which can be nowhere else.
    """
    return sorted(
        path.name
        for path in (root / package).iterdir()
        if (path.suffix == ".py" and not path.name.startswith("__")) or any(path.glob("*.py"))
    )


def main(command_line: list[str]) -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m deploy.tools.import_graph")
    parser.add_argument("--arrows", action="store_true", help="name circles and upward imports")
    arguments = parser.parse_args(command_line)
    graph = read_imports()
    circles, upward = graph.circles(), graph.upward()
    print(f"modules             {len(graph.modules)}")
    print(f"top of directory/   {len(names_at_top())}")
    print(f"one importer        {len(graph.with_one_importer())}")
    print(f"circles             {len(circles)}")
    print(f"upward imports      {len(upward)}")
    print(f"shared file names   {len(graph.same_names())}")
    if arguments.arrows:
        for circle in circles:
            print("circle  " + " ↔ ".join(circle))
        for name, target in upward:
            print(f"upward  {name} → {target}")
        for name, modules in graph.same_names().items():
            print(f"shared  {name}: {' '.join(modules)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
