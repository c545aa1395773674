"""``import kdir``: the public names, loaded when asked for; a missing extra is named."""

from __future__ import annotations

import subprocess
import sys

import kdir
import pytest

import resolver
from resolver import kafka
from resolver.testing import MemoryDirectory

_BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "confluent_kafka":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_public_names_are_those_of_the_packages() -> None:
    assert kdir.Resolver is resolver.Resolver
    assert kdir.TopicLocation is resolver.TopicLocation
    assert kdir.KdirError is resolver.KdirError
    assert kdir.Path is resolver.Path
    assert kdir.Producer is kafka.Producer
    assert kdir.Consumer is kafka.Consumer
    assert set(kdir.__all__) <= set(dir(kdir))
    with pytest.raises(AttributeError, match="'kdir' has no attribute 'Nobody'"):
        _ = kdir.Nobody


def test_importing_it_loads_nothing_else() -> None:
    loaded = "{'grpc', 'resolver', 'confluent_kafka', 'google.protobuf'} & set(sys.modules)"
    assert run(f"import sys, kdir; print({loaded})") == "set()"


def test_one_path_is_not_subscribed_to_letter_by_letter() -> None:
    with MemoryDirectory() as directory:
        directory.cluster("/la", "la")
        consumer = kdir.Consumer(directory.resolver(), {"group.id": "g"})
        with pytest.raises(TypeError, match=r"found one path, '/la/orders'; expected several"):
            consumer.subscribe("/la/orders")
        consumer.close()


@pytest.mark.parametrize("module", ["kdir", "resolver.kafka"])
@pytest.mark.parametrize("name", ["Producer", "Consumer"])
def test_without_kafkas_client_the_extra_is_named(module: str, name: str) -> None:
    code = f"""{_BLOCKED}
try:
    from {module} import {name}
except ImportError as error:
    print(error)
"""
    wanted = (
        f"{name} needs the package confluent-kafka, which is not installed: "
        "pip install 'kdir[kafka]'"
    )
    assert run(code) == wanted
