"""``etcd3``'s old generated modules, made to load."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from directory.store.etcd.etcd3_stubs import etcdrpc, transactions

ROOT = Path(__file__).resolve().parents[3]


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_package_still_cannot_be_imported_as_it_is() -> None:
    done = _python("import etcd3")
    assert done.returncode != 0, (
        "etcd3 now ships modules that today's protobuf imports. Delete"
        " directory/store/etcd/etcd3_stubs.py and this file, let directory/store/etcd/ import"
        " etcd3.etcdrpc and etcd3.transactions themselves, and unpin etcd3 in pyproject.toml. See"
        " first that WatchCreateRequest.fragment and WatchRequest.progress_request are in them."
    )
    assert "Descriptors cannot be created directly" in done.stderr


def test_after_it_the_package_is_imported_unchanged() -> None:
    done = _python(
        "import directory.store.etcd.etcd3_stubs, etcd3; print(etcd3.etcdrpc.RangeRequest().limit)"
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_missing_package_is_one_sentence() -> None:
    done = _python(
        "import importlib.util as u; u.find_spec = lambda name: None\n"
        "from directory.store.base import IncompatibleStore\n"
        "try: import directory.store.etcd.etcd3_stubs\n"
        "except IncompatibleStore as error: print(error)"
    )
    assert "pip install 'kdir[etcd]'" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("message", "bytes_on_the_wire"),
    [
        # By hand, from etcd's rpc.proto: tag = number << 3 | wire type.
        (etcdrpc.RangeRequest(key=b"k", limit=3), b"\x0a\x01k\x18\x03"),
        (etcdrpc.WatchCreateRequest(start_revision=5, fragment=True), b"\x18\x05\x40\x01"),
        (etcdrpc.WatchRequest(progress_request={}), b"\x1a\x00"),
        (etcdrpc.WatchResponse(watch_id=1, fragment=True), b"\x10\x01\x38\x01"),
        (transactions.Mod(b"k") == 7, b"\x10\x02\x1a\x01k\x30\x07"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_messages_are_etcds(message: Any, bytes_on_the_wire: bytes) -> None:
    built = message.build_message() if hasattr(message, "build_message") else message
    assert built.SerializeToString() == bytes_on_the_wire


def test_a_watch_request_holds_one_of_its_kinds() -> None:
    request = etcdrpc.WatchRequest(progress_request={})
    request.create_request.key = b"k"
    assert request.WhichOneof("request_union") == "create_request"


def test_files_of_the_same_names_in_other_packages_are_not_in_the_way() -> None:
    done = _python(
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "other = descriptor_pb2.FileDescriptorProto(name='rpc.proto', package='other')\n"
        "descriptor_pool.Default().Add(other)\n"
        "from directory.store.etcd.etcd3_stubs import etcdrpc\n"
        "print(etcdrpc.RangeRequest.DESCRIPTOR.full_name)"
    )
    assert (done.stdout, done.stderr) == ("etcdserverpb.RangeRequest\n", "")
