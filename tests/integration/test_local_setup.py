"""What a bare machine is told that lacks something, and the cache that clones share."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.local import cache

ROOT = Path(__file__).resolve().parents[2]
JAVA_17 = "echo 'openjdk version \"17.0.1\"' >&2"
JAVA_8 = "echo 'java version \"1.8.0_392\"' >&2"
JAVA_11 = "echo 'openjdk version \"11.0.2\"' >&2"
BROKEN_MAVEN = "echo '[ERROR] no such artifact'; exit 1"


def programs(folder: Path, **scripts: str) -> Path:
    """Makes a folder to be PATH, with only these programs in it."""
    folder.mkdir()
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("scripts", "sentence"),
    [
        ({}, "Java is needed to run Kafka and Spark: install Java 17 or newer"),
        ({"java": JAVA_8}, "is Java 8, too old: install Java 17 or newer"),
        ({"java": JAVA_11}, "is Java 11, too old: install Java 17 or newer"),
        ({"java": JAVA_17}, "Maven is needed to fetch the local servers' jars: install it"),
        ({"java": JAVA_17, "mvn": BROKEN_MAVEN}, "[ERROR] no such artifact"),
    ],
)
def test_fetching_servers_says_in_a_sentence_what_is_missing(
    tmp_path: Path, scripts: dict[str, str], sentence: str
) -> None:
    environment = {
        "PATH": str(programs(tmp_path / "bin", **scripts)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "deploy.local"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "cache").rglob("kafka*")), "half a folder would be taken for whole"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (None, "kdir needs Python 3.11 or newer"),
        ("exit 1", "kdir needs Python 3.11 or newer"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "This Python has no venv module"),
    ],
)
def test_setup_says_in_a_sentence_what_python_lacks(
    tmp_path: Path, script: str | None, sentence: str
) -> None:
    folder = programs(tmp_path / "bin", **({"python": script} if script else {}))
    done = subprocess.run(
        ["make", "setup", f"PYTHON={folder / 'python'}", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert sentence in done.stderr
    assert not (tmp_path / "venv").exists()


def test_own_kafka_libraries_are_used_instead_of_those_from_maven(tmp_path: Path) -> None:
    own = tmp_path / "libs"
    own.mkdir()
    command = [sys.executable, "-m", "deploy.local", "kafka"]
    environment = os.environ | {
        "KDIR_KAFKA_LIBS": str(own),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def fetch() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    assert "there is no kafka_2.13 jar in it" in fetch().stderr
    (own / "kafka_2.13-4.1.1.jar").touch()
    assert fetch().returncode == 0
    assert not (tmp_path / "cache").exists()


MAKER = """
import sys, time
from pathlib import Path
from deploy.local import cache
def make(folder):
    print("made", flush=True)
    (folder / "first").touch()
    time.sleep(float(sys.argv[1]))
    (folder / "second").touch()
print(sorted(path.name for path in cache.provide("thing-1", make).iterdir()))
"""


def maker(seconds: float, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(seconds)],
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_clones_at_once_make_a_thing_once_and_both_see_it_whole(tmp_path: Path) -> None:
    both = [maker(0.5, tmp_path), maker(0.5, tmp_path)]
    with ThreadPoolExecutor() as pool:
        output = list(pool.map(lambda process: process.communicate(timeout=60)[0], both))
    assert [text.count("['first', 'second']") for text in output] == [1, 1]
    assert sum(text.count("made") for text in output) == 1


def test_a_maker_that_was_killed_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    first = maker(600, tmp_path)
    assert first.stdout is not None
    assert first.stdout.readline() == "made\n"
    with first:
        first.kill()
    output, _ = maker(0, tmp_path).communicate(timeout=60)
    assert output == "made\n['first', 'second']\n"
    assert sorted(path.name for path in (tmp_path / "kdir").iterdir()) == ["lock", "thing-1"]


def test_a_maker_that_fails_leaves_nothing_by_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise cache.ServerUnavailable("no")

    with pytest.raises(cache.ServerUnavailable):
        cache.provide("thing-1", fail)
    assert cache.find("thing-1") is None
    assert cache.provide("thing-1", lambda _: None).is_dir()


CASE = """
import pytest
@pytest.mark.usefixtures("kafka_broker")
def test_it():
    pass
"""


@pytest.mark.parametrize(
    ("require", "outcome"), [("0", "1 skipped"), ("1", "1 error")], ids=["optional", "required"]
)
def test_a_test_without_its_server_is_skipped_or_fails_where_servers_are_required(
    tmp_path: Path, require: str, outcome: str
) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(CASE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", tmp_path],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "KDIR_REQUIRE_SERVERS": require},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout
    assert "Java is needed" in done.stdout
