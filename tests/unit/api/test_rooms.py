"""How many files of the server a Resolve and a CreateEntry pass, and how often they come back."""

import pytest

from deploy.tools.rooms import Rooms, trace_calls


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rooms]:
    return trace_calls(tmp_path_factory.mktemp("rooms"))


@pytest.mark.parametrize(
    ("method", "files", "returns"), [("Resolve", 14, 2), ("CreateEntry", 42, 22)]
)
def test_calls_pass_few_files(
    ways: dict[str, Rooms], method: str, files: int, returns: int
) -> None:
    """``returns``: to any one file."""
    way = ways[method]
    assert way.way[0] == "api/rpc/handlers.py"
    assert way.files <= files, way.way
    assert max(way.returns_to().values()) <= returns, way.returns_to()
