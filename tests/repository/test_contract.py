"""The contract in proto/: its generated modules are current, it is well formed, and never broken.

buf judges it, by proto/buf.yaml: naming, packages and comments (lint), and what would break a
client that was built against proto/baseline.txtpb (breaking).
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.tools.generate import PROTO, ROOT, generate

BASELINE = PROTO / "baseline.txtpb"


def buf(*arguments: str | Path, within: Path = PROTO) -> list[str]:
    """Returns what buf has to say: nothing when all is well."""
    command = [Path(sys.executable).parent / "buf", *arguments]
    done = subprocess.run(
        command,
        cwd=within,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = done.stdout.splitlines()
    assert bool(output) == (done.returncode != 0), done
    return output


def generated(folder: Path) -> dict[str, str]:
    """Returns the generated modules below a folder, by their paths in it."""
    paths = (path for path in folder.rglob("*_pb2*") if path.suffix in {".py", ".pyi"})
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def outdated(source: Path, fresh: Path) -> list[str]:
    """Returns which generated modules in `source` differ from those generated anew into `fresh`."""
    generate(fresh, source)
    here, again = generated(source), generated(fresh)
    return sorted(name for name in here | again if here.get(name) != again.get(name))


def test_generated_modules_are_current(tmp_path: Path) -> None:
    assert outdated(PROTO, tmp_path) == [], "run: make proto"


def test_outdated_missing_and_left_over_modules_are_found(tmp_path: Path) -> None:
    source, fresh = tmp_path / "source", tmp_path / "fresh"
    thing = source / "kdir" / "v1" / "thing.proto"
    thing.parent.mkdir(parents=True)
    thing.write_text(THING)
    fresh.mkdir()
    assert outdated(source, fresh) == [
        "kdir/v1/thing_pb2.py",
        "kdir/v1/thing_pb2.pyi",
        "kdir/v1/thing_pb2_grpc.py",
        "kdir/v1/thing_pb2_grpc.pyi",
    ]
    generate(source, source)
    assert outdated(source, fresh) == []
    thing.write_text(THING.replace("string name = 1", "bytes name = 1"))
    thing.with_name("gone_pb2.py").write_text("")
    assert outdated(source, fresh) == [
        "kdir/v1/gone_pb2.py",
        "kdir/v1/thing_pb2.py",
        "kdir/v1/thing_pb2.pyi",
    ]


def test_the_contract_follows_buf_standard_and_has_comments() -> None:
    assert buf("lint", ".") == []


def test_the_contract_breaks_no_client_of_the_baseline() -> None:
    output = buf("breaking", ".", "--against", BASELINE)
    assert output == [], "only if no client exists yet: make proto-baseline"


def test_the_baseline_knows_the_whole_contract(tmp_path: Path) -> None:
    # What the baseline does not know could be broken unseen.
    assert buf("build", ".", "--exclude-source-info", "-o", tmp_path / "now.txtpb") == []
    assert (tmp_path / "now.txtpb").read_text() == BASELINE.read_text(), "run: make proto"


THING = """\
// A thing.
syntax = "proto3";

package kdir.v1;

// Has things.
service ThingService {
  // Gets one.
  rpc GetThing(GetThingRequest) returns (GetThingResponse);
}

// Asks for one.
message GetThingRequest {
  // Which.
  string name = 1;
}

// One thing.
message GetThingResponse {
  // Its name.
  string name = 1;
  // Its kind.
  ThingKind kind = 2;
}

// Kinds of things.
enum ThingKind {
  // Not said.
  THING_KIND_UNSPECIFIED = 0;
  // A big one.
  THING_KIND_BIG = 1;
}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Callable[[str, str], Path]:
    """Returns a factory of a small valid contract with one part of it replaced."""

    def make(old: str, new: str) -> Path:
        assert old in THING
        folder = tmp_path / "changed"
        (folder / "kdir" / "v1").mkdir(parents=True)
        shutil.copy(PROTO / "buf.yaml", folder)
        thing = folder / "kdir" / "v1" / "thing.proto"
        thing.write_text(THING)
        assert buf("build", ".", "-o", tmp_path / "before.txtpb", within=folder) == []
        thing.write_text(THING.replace(old, new))
        return folder

    return make


def test_the_good_small_contract_is_found_good(workspace: Callable[[str, str], Path]) -> None:
    folder = workspace("// Its kind.", "// What kind it is of.")
    assert buf("lint", ".", within=folder) == []
    assert buf("breaking", ".", "--against", "../before.txtpb", within=folder) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  // Which.\n", "", 'Field "name" should have a non-empty comment'),
        ("  // Gets one.\n", "", 'RPC "GetThing" should have a non-empty comment'),
        ("  // A big one.\n", "", 'Enum value "THING_KIND_BIG" should have a non-empty comment'),
        ("service ThingService", "service Things", "should be suffixed with"),
        ("(GetThingRequest)", "(GetThingResponse)", 'should be named "GetThingRequest"'),
        ("THING_KIND_BIG", "BIG", 'should be prefixed with "THING_KIND_"'),
        ("THING_KIND_UNSPECIFIED", "THING_KIND_NONE", 'should be suffixed with "_UNSPECIFIED"'),
        ("package kdir.v1", "package kdir.v2", "must be within a directory"),
    ],
)
def test_bad_form_is_found(
    workspace: Callable[[str, str], Path], old: str, new: str, complaint: str
) -> None:
    assert complaint in "\n".join(buf("lint", ".", within=workspace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("ThingKind kind = 2", "ThingKind kind = 3", 'Previously present field "2"'),
        ("  // Its kind.\n  ThingKind kind = 2;\n", "", 'Previously present field "2"'),
        ("ThingKind kind = 2", "uint64 kind = 2", "changed type"),
        ("ThingKind kind = 2", "ThingKind sort = 2", "changed name"),
        ("THING_KIND_BIG = 1", "THING_KIND_BIG = 2", 'Previously present enum value "1"'),
        ("rpc GetThing(", "rpc FetchThing(", 'Previously present RPC "GetThing"'),
    ],
)
def test_a_break_is_found(
    workspace: Callable[[str, str], Path], old: str, new: str, complaint: str
) -> None:
    folder = workspace(old, new)
    output = "\n".join(buf("breaking", ".", "--against", "../before.txtpb", within=folder))
    assert complaint in output


def test_the_runtime_that_the_package_asks_for_can_load_what_is_generated() -> None:
    sample = generated(PROTO)
    messages = sample["kdir/v1/entry_pb2.py"]
    protobuf = re.search(r"# Protobuf Python Version: ([\d.]+)", messages)
    grpcio = re.search(
        r"GRPC_GENERATED_VERSION = '([\d.]+)'", sample["kdir/v1/resolve_pb2_grpc.py"]
    )
    assert protobuf is not None
    assert grpcio is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"protobuf>={protobuf[1]}" in project["dependencies"]
    assert f"grpcio>={grpcio[1]}" in project["dependencies"]


def test_all_of_grpc_has_one_version() -> None:
    parts = ["", "-tools", "-status", "-reflection", "-health-checking"]
    assert len({version(f"grpcio{part}") for part in parts}) == 1
