"""Files of Kafka client settings: what is a setting, what is a comment, and what is a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from resolver.properties_file import parse_settings, read_settings


def test_settings_comments_and_blanks() -> None:
    text = "# a comment\n! another\n\n  sasl.username = alice \r\nsasl.password=a=b#c!\nempty=\n"
    assert parse_settings(text) == {
        "sasl.username": "alice",
        "sasl.password": "a=b#c!",
        "empty": "",
    }


@pytest.mark.parametrize("line", ["hunter2", "=hunter2", "[default]", "sasl.password: hunter2"])
def test_a_wrong_line_is_named_by_its_number_and_not_shown(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: expected KEY=VALUE") as raised:
        parse_settings(f"a=b\n{line}")
    assert "hunter2" not in str(raised.value)


def test_a_key_that_comes_twice_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="line 2: a is set twice"):
        parse_settings("a=b\na=c")


def test_what_cannot_be_read_is_reported_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    with pytest.raises(FileNotFoundError, match=r"kafka\.properties"):
        read_settings(str(file))
    file.write_bytes(b"a=\xff")
    with pytest.raises(ValueError, match="UTF-8"):
        read_settings(str(file))
    file.write_bytes(b"\xef\xbb\xbfa=b")
    assert read_settings(str(file)) == {"a": "b"}
