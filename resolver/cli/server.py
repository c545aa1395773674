"""The verb ``server``: runs a directory server in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resolver.cli.parser import RAW_ARGUMENTS, Arguments, Option, Verb

if TYPE_CHECKING:
    from resolver.cli.session import Session

__all__ = ["VERBS"]


def _server(session: Session, arguments: Arguments) -> int:
    import os
    import sys

    session.out.flush()
    # -P: without it, a folder "directory" in the working directory would be imported.
    command = [sys.executable, "-P", "-m", "directory", *arguments.many(RAW_ARGUMENTS)]
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


VERBS: Final = (
    Verb(
        name="server",
        summary="run the directory server of a cluster",
        run=_server,
        raw=True,
        details=(
            "Runs until SIGTERM or SIGINT. Without --config it needs --mount; with --kafka it\n"
            "serves the topics of a running Kafka cluster under their own names, and changes\n"
            "nothing in Kafka."
        ),
        options=(
            Option(
                ("--config",),
                "TOML file, or folder of them; repeatable",
                "FILE",
                repeated=True,
                completes="file",
            ),
            Option(("--check",), "validate the config, show its effect, exit"),
            Option(("--mount",), "mount point of the cluster", "PATH"),
            Option(("--kafka",), "brokers to begin with", "HOST:PORT,…"),
            Option(("--listen",), "default 127.0.0.1:7420", "HOST:PORT"),
            Option(("--parent",), "servers of the parent", "HOST:PORT,…"),
            Option(("--cluster",), "its name; default: the mount, joined by -", "NAME"),
            Option(("--store",), "sqlite:///FILE; default: a file in the state folder", "ADDRESS"),
            Option(("--site",), "the site that it belongs to", "NAME"),
            Option(
                ("--processes",),
                "number of worker processes that share the port and the store; default 1",
                "N",
            ),
            Option(("--metrics",), "answer Prometheus, health and readiness there", "HOST:PORT"),
            Option(
                ("--log-format",),
                "default $KDIR_LOG_FORMAT, or text",
                "FORMAT",
                choices=("text", "json"),
            ),
            Option(
                ("--log-level",),
                "how much to log",
                "LEVEL",
                choices=("DEBUG", "INFO", "WARNING", "ERROR"),
            ),
        ),
        examples=(
            ("kdir server --mount /la/tracking --kafka kafka-1:9092", "no file, no other flag"),
            ("kdir server --config /etc/kdir/la-tracking.toml", "a configured one"),
            (
                "kdir server --config la.toml --metrics 127.0.0.1:9420 --log-format json",
                "for Prometheus, and one JSON object a log line",
            ),
            ("kdir server --config /etc/kdir/la.toml --processes 4", "one port, four processes"),
            ("kdir server --check --config /etc/kdir/", "every *.toml in the folder: is it right?"),
        ),
    ),
)
