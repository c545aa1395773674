"""ruff and mypy find nothing; `make check` runs them directly, `make test` through this file."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("resolver", "directory", "deploy", "bench", "tests")


def run(tool: str, *arguments: str | Path) -> tuple[int, str]:
    """Returns the exit code and what the tool said."""
    command = [Path(sys.executable).parent / tool, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, done.stdout


def test_ruff_finds_nothing() -> None:
    code, output = run("ruff", "check", ".")
    assert code == 0, output


def test_the_format_is_ruffs() -> None:
    code, output = run("ruff", "format", "--check", ".")
    assert code == 0, f"run: make fix\n{output}"


PRIVATE = 60
"""So many times tests touch what is private to a class or a module; may only become less."""


def test_tests_touch_few_private_attributes() -> None:
    _, output = run("ruff", "check", "tests", "--isolated", "--select", "SLF001", "--statistics")
    found = sum(int(line.split()[0]) for line in output.splitlines() if "SLF001" in line)
    assert 0 < found <= PRIVATE, (
        "assert on what is public, or give the class the property that an operator wants, too: "
        "ruff check tests --isolated --select SLF001"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)  # the first run reads all of pyspark
def test_mypy_finds_nothing() -> None:
    code, output = run("mypy", *SOURCES)
    assert code == 0, output


BARE_EXCEPT = """\
def f() -> None:
    try:
        f()
    except:
        pass
"""


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("import os", "F401"),
        (BARE_EXCEPT, "E722"),
        ("x = 1", "D100"),
        ("x = 1  # TODO: later", "FIX002"),
        ("x = 1  # noqa: F401", "RUF100"),
    ],
)
def test_the_linter_is_on(tmp_path: Path, code: str, rule: str) -> None:
    file = tmp_path / "module.py"
    file.write_text(code)
    failed, output = run("ruff", "check", "--config", ROOT / "pyproject.toml", file)
    assert failed
    assert rule in output


WRONG_ANSWER = """\
from grpc import insecure_channel
from kdir.v1 import resolve_pb2
from kdir.v1.resolve_pb2_grpc import ResolveServiceStub
stub = ResolveServiceStub(insecure_channel("x"))
answer: int = stub.Resolve(resolve_pb2.ResolveRequest())
"""


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("def f(x):\n    return x", "no-untyped-def"),
        ("x: list = []", "type-arg"),
        ("x = 1  # type: ignore[misc]", "unused-ignore"),
        (WRONG_ANSWER, 'has type "ResolveResponse"'),
    ],
)
def test_the_type_checker_is_strict_and_knows_the_contract(
    tmp_path: Path, code: str, complaint: str
) -> None:
    file = tmp_path / "module.py"
    file.write_text(code)
    failed, output = run("mypy", "--config-file", ROOT / "pyproject.toml", file)
    assert failed
    assert complaint in output
