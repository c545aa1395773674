"""The public door: what it has, and what it costs to open."""

import subprocess
import sys

import pytest

import resolver


def modules_after(code: str) -> set[str]:
    """Returns what a fresh interpreter has imported after ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_every_public_name_is_there_and_listed() -> None:
    assert resolver.__all__ == sorted(resolver.__all__)
    for name in resolver.__all__:
        assert getattr(resolver, name) is not None
    assert set(resolver.__all__) <= set(dir(resolver))
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = resolver.Nonsense


def test_small_parts_do_not_open_the_whole() -> None:
    for name in ("resolver", "resolver.errors", "resolver.path", "resolver.revision_token"):
        assert not {"grpc", "google.protobuf", "resolver.client"} & modules_after(f"import {name}")


def test_the_client_opens_only_what_every_verb_needs() -> None:
    loaded = modules_after("import resolver.client")
    unwanted = {
        "asyncio",
        "confluent_kafka",
        "hashlib",
        "ipaddress",
        "json",
        "pyspark",
        "random",
        "resolver.answer_cache_file",
        "resolver.directory_listing",
        "resolver.reverse_lookup",
        "resolver.watch_streams",
        "rich",
        "uuid",
    } - modules_after("import grpc, google.protobuf.message")
    assert not unwanted & loaded
