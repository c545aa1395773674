"""How the modules of directory/ and resolver/ import each other: no circles, and nothing upward."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.tools.import_graph import LAYERS, ImportGraph, layer_of, names_at_top, read_imports

_MOST_AT_TOP = 10
_MOST_WITH_ONE_IMPORTER = 60


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    return read_imports()


def test_no_modules_import_each_other_in_a_circle(graph: ImportGraph) -> None:
    assert graph.circles() == []


def test_no_import_runs_upward(graph: ImportGraph) -> None:
    assert graph.upward() == []


def test_each_module_has_a_layer(graph: ImportGraph) -> None:
    assert all(layer_of(module) >= 0 for module in graph.modules)


def test_the_layers_name_what_exists(graph: ImportGraph) -> None:
    # A layer of a module that was renamed would hold for nothing.
    named = [name for names in LAYERS for name in names]
    assert len(named) == len(set(named))
    assert set(named) <= graph.imports.keys()


def test_few_modules_serve_one_other_alone(graph: ImportGraph) -> None:
    alone = graph.with_one_importer()
    assert len(alone) <= _MOST_WITH_ONE_IMPORTER, f"merge one into the module it serves: {alone}"


def test_few_names_are_at_the_top() -> None:
    assert len(names_at_top()) <= _MOST_AT_TOP


def made(root: Path, files: Mapping[str, str]) -> ImportGraph:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_imports(root)


def test_circles_are_found_also_in_functions_and_through_others(tmp_path: Path) -> None:
    graph = made(
        tmp_path,
        {
            "resolver/__init__.py": "",
            "resolver/a.py": "from resolver import b",
            "resolver/b.py": "def f():\n    import resolver.c",
            "resolver/c.py": "from resolver.a import X",
            "resolver/d.py": "from resolver.a import Y",
        },
    )
    assert graph.circles() == [["resolver.a", "resolver.b", "resolver.c"]]
    assert graph.with_one_importer() == ["resolver.b", "resolver.c"]


def test_an_import_upward_is_found(tmp_path: Path) -> None:
    graph = made(
        tmp_path,
        {
            "resolver/__init__.py": "",
            "resolver/path.py": "import resolver.cli.ls",
            "resolver/cli/ls.py": "from resolver.path import Path",
        },
    )
    assert graph.upward() == [("resolver.path", "resolver.cli.ls")]


def test_shared_file_names_and_names_at_the_top_are_found(tmp_path: Path) -> None:
    graph = made(
        tmp_path,
        {
            "directory/__init__.py": "",
            "directory/kafka/quota.py": "",
            "directory/namespace/quota.py": "",
            "directory/top.py": "",
        },
    )
    assert graph.same_names() == {"quota": ["directory.kafka.quota", "directory.namespace.quota"]}
    assert names_at_top(tmp_path) == ["kafka", "namespace", "top.py"]


def test_a_module_without_a_layer_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"elsewhere\.x: no layer"):
        layer_of("elsewhere.x")
