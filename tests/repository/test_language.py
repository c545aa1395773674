"""Names, docstrings, comments and texts are in the terms of docs/glossary.md."""

import ast
import builtins
import re
from pathlib import Path

import pytest

from deploy.tools.language import (
    findings,
    messages,
    misnamed,
    prose,
    remarks,
    retired_terms,
    undescribed,
)

ROOT = Path(__file__).resolve().parents[2]
STORED = {"texts directory/maintenance/restore.py": 1}
"""Text that an earlier kdir wrote into stores: it is compared and not shown."""


def test_names_and_texts_are_in_the_terms_of_the_glossary() -> None:
    found = findings()
    assert found == STORED, (
        "retired words in names, texts or remarks (docs/glossary.md has what to write instead), or"
        f" docstrings that do not begin with a verb (a class's: with a noun): {dict(found)}"
    )


def test_docstrings_name_errors_that_there_are() -> None:
    trees = [
        ast.parse(file.read_text())
        for package in ("directory", "resolver")
        for file in (ROOT / package).rglob("*.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    known = {one.name for one in nodes if isinstance(one, ast.ClassDef)}
    known |= {*dir(builtins), "KafkaException"}
    names = re.compile(r"^    ([A-Z]\w*(?:\.\w+)*(?:, [A-Z]\w*(?:\.\w+)*)*)(?::|$)", re.MULTILINE)
    unknown = {
        (one.name, error)
        for one in nodes
        if isinstance(one, ast.FunctionDef | ast.ClassDef)
        for section in (ast.get_docstring(one) or "").split("\nRaises:\n")[1:]
        for errors in names.findall(section)
        for error in errors.split(", ")
        if error.rpartition(".")[2] not in known
    }
    assert not unknown


def test_the_glossary_has_the_retired_terms() -> None:
    arguments = retired_terms((ROOT / "docs" / "glossary.md").read_text())
    assert {"told", "sight", "wishes", "guarding", "whoever", "somebody"} <= arguments


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("told_at = 1", {"told_at"}),
        ("def f(sight): pass", {"sight"}),
        ("class WordList: pass", {"WordList"}),
        ("import x as hosting", {"hosting"}),
        ("self._life = 1", {"_life"}),
        ("sword = lifetime = returned = 1", set()),
    ],
)
def test_a_retired_term_is_found_as_a_part_of_a_name(code: str, names: set[str]) -> None:
    arguments = retired_terms((ROOT / "docs" / "glossary.md").read_text())
    assert misnamed(ast.parse(code), arguments) == names


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('def f():\n    """Returns it."""', []),
        ('def f():\n    """True if it is."""', []),
        ('def f():\n    """What it is."""', ["f"]),
        ('def f():\n    """Return it."""', ["f"]),
        ('def _f():\n    """What it is."""', []),
        ('class C:\n    """Lock per key."""', []),
        ('class C:\n    """What locks."""', ["C"]),
        ('class C:\n    """Locks keys."""', ["C"]),
        ('class C:\n    def f(self):\n        """The one."""', ["C.f"]),
        ('class C:\n    @property\n    def f(self):\n        """The one."""', []),
    ],
)
def test_a_docstring_begins_with_what_its_kind_begins_with(code: str, found: list[str]) -> None:
    assert undescribed(ast.parse(code)) == found


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        ('x = "it was told"', ["it was told"]),
        ('"""It was told."""', []),
        ('def f():\n    """It was told."""', []),
        ('x = "told"', []),
        ('x = "give --new-life for it"', ["give  for it"]),
        ('x = f"{n} are told"', [" are told"]),
        ('x = "#compdef words of a shell"', []),
    ],
)
def test_messages_are_what_people_may_read(code: str, texts: list[str]) -> None:
    assert messages(ast.parse(code)) == texts


def test_remarks_are_docstrings_and_comments() -> None:
    code = 'x = 1  # told\n"""Told by ``told``."""\ny = "it was told"\n'
    assert remarks(code) == ["Told by .", "# told"]


def test_code_and_targets_of_links_are_no_prose() -> None:
    page = "It is told\n```\ntold\n```\nby `told` and [here](#told)."
    assert prose(page) == "It is told\n\nby  and [here."


def test_a_docstring_or_comment_with_a_retired_term_is_found(
    tmp_path: Path,
) -> None:
    for path in ("directory/module.py", "tests/module.py"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text('"""Told."""\nx = 1  # told\n')
    paths = ["directory/module.py", "tests/module.py"]
    assert findings(paths, tmp_path) == {"remarks directory/module.py": 2}


def test_a_module_that_says_what_it_refuses_is_found(tmp_path: Path) -> None:
    for path in ("directory/module.py", "tests/module.py"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text('"""Codec of entries; refuses\nto know paths."""\n')
    paths = ["directory/module.py", "tests/module.py"]
    assert findings(paths, tmp_path) == {"refusals directory/module.py": 1}


def test_a_page_or_message_with_a_retired_term_is_found(tmp_path: Path) -> None:
    page, module = tmp_path / "README.md", tmp_path / "resolver" / "module.py"
    for file, text in ((page, "Told again, told `told`."), (module, 'x = "it was told"')):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    paths = ["README.md", "resolver/module.py"]
    assert findings(paths, tmp_path) == {"texts README.md": 2, "texts resolver/module.py": 1}
