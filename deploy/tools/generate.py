"""Generates the Python modules of the gRPC contract from proto/.

The messages' stubs come from protoc itself; those of the services from mypy-protobuf, so that
`mypy --strict` sees the types of every call.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"


def contract(source: Path = PROTO) -> list[Path]:
    """Returns every .proto file of the contract, in name order."""
    return sorted((source / "kdir").rglob("*.proto"))


def generate(target: Path, source: Path = PROTO) -> None:
    """Writes the generated modules of `source` below `target`.

    Raises:
        RuntimeError: protoc refused the contract; its messages are on stderr.
    """
    protos = contract(source)
    services = [path for path in protos if re.search(r"^service ", path.read_text(), re.MULTILINE)]
    _protoc(source, protos, f"--python_out={target}", f"--pyi_out={target}")
    _protoc(
        source,
        services,
        # Plugins are found beside the interpreter, whatever PATH says.
        f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).parent / 'protoc-gen-mypy_grpc'}",
        f"--grpc_python_out={target}",
        f"--mypy_grpc_out=quiet:{target}",
    )


def _protoc(source: Path, protos: list[Path], *outputs: str) -> None:
    import grpc_tools
    from google.rpc import status_pb2
    from grpc_tools import protoc

    includes = [
        source,
        Path(grpc_tools.__path__[0]) / "_proto",  # google/protobuf/*.proto
        Path(status_pb2.__file__).parents[2],  # google/rpc/*.proto
    ]
    arguments = ["protoc", *(f"--proto_path={path}" for path in includes), *outputs]
    if protoc.main([*arguments, *(str(path) for path in protos)]) != 0:
        raise RuntimeError("protoc refused the contract")


if __name__ == "__main__":
    generate(PROTO)
