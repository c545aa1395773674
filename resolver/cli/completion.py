"""Completion: candidates at the cursor, and the script of each shell that calls it.

It never raises and prints nothing on stderr. Verbs, options and recently listed paths need no gRPC;
other paths are queried with a short timeout, and without an answer older names are offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from resolver.cli.output import offer
from resolver.cli.parser import GLOBAL_OPTIONS, Argument, Option, UsageError, Verb, split_verb
from resolver.cli.registry import GROUPS, load_verb

if TYPE_CHECKING:
    from resolver.user_config import LoginSettings

__all__ = ["KEYS", "OPERATIONS", "TOPIC_CONFIGS", "candidates", "complete", "script"]

ASK_SECONDS: Final = 1.0
"""Timeout of a query, since the user waits at the prompt."""
OLD_SECONDS: Final = 86_400.0
"""Maximum age of names that are offered if no server answers."""

# Candidates for operations and for keys of policies. They are copies, so that completion needs no
# slow import: a test compares them with the contract and with Kafka's definitions.
OPERATIONS: Final = (
    "all", "alter", "alter-configs", "cluster-action", "create", "create-tokens", "delete",
    "describe", "describe-configs", "describe-tokens", "idempotent-write", "read",
    "two-phase-commit", "write",
)  # fmt: skip
TOPIC_CONFIGS: Final = (
    "cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type",
    "compression.zstd.level", "delete.retention.ms", "file.delete.delay.ms", "flush.messages",
    "flush.ms", "follower.replication.throttled.replicas", "index.interval.bytes",
    "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms",
    "max.compaction.lag.ms", "max.message.bytes", "message.downconversion.enable",
    "message.format.version", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms", "message.timestamp.type", "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms", "min.insync.replicas", "preallocate", "remote.log.copy.disable",
    "remote.log.delete.on.disable", "remote.storage.enable", "retention.bytes", "retention.ms",
    "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
    "unclean.leader.election.enable",
)  # fmt: skip
KEYS: Final = (
    "owner", "contact", "description", "encryption_key_id", "read_only", "partitions",
    "replication_factor", "max_topics", "max_partitions", "closed", "targets", "mode", "writes",
    "fall_back_on_absent", "manage.create", "manage.configs", "manage.acls", "manage.delete",
    "producer.", "consumer.", "tags.",
    *(name if "." in name else f"config.{name}" for name in TOPIC_CONFIGS),
)  # fmt: skip
"""All keys of ``kdir set``; a key that ends in a dot is a prefix."""

_BASH: Final = r"""# bash completion of kdir
_kdir() {
    local IFS=$'\n'
    COMPREPLY=( $(kdir __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null) )
    # A directory is rarely the end of a path, nor a key of what is set: no blank after it.
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _kdir kdir"""

_ZSH: Final = r"""#compdef kdir
# zsh completion of kdir
_kdir() {
    local -a found deeper
    found=("${(@f)$(kdir __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found:#}")
    # A directory is rarely the end of a path, nor a key of what is set: no blank after it.
    deeper=("${(@M)found:#*[/=.]}")
    found=("${(@)found:#*[/=.]}")
    compadd -S '' -a deeper
    compadd -a found
}
compdef _kdir kdir"""

_FISH: Final = r"""# fish completion of kdir
function __kdir_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l last (commandline -ct)
    kdir __complete fish $words "$last" 2>/dev/null
end
complete -c kdir -f -a '(__kdir_complete)'"""

_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """Returns the completion script of ``bash``, ``zsh`` or ``fish``."""
    return _SCRIPTS[shell]


def complete(parts: Sequence[str]) -> int:
    """Prints the candidates for the last of ``parts``: the shell's name, the arguments before the
    cursor, and the one at the cursor, which may be empty. Returns the exit code.
    """
    if len(parts) < 2 or parts[0] not in _SCRIPTS:
        return 2
    shell, *line = parts
    if shell == "bash":
        line = _join_equals(line)
    try:
        for part, meaning in candidates(line):
            offer(part, meaning if shell == "fish" else "")
    except Exception:  # noqa: BLE001 - no error may be printed at a prompt
        return 1
    return 0


def _join_equals(line: list[str]) -> list[str]:
    # bash splits arguments at "=", and expects only the part after it.
    if line[-1] == "=":
        return [*line[:-1], ""]
    return [*line[:-2], line[-1]] if len(line) > 1 and line[-2] == "=" else line


def candidates(line: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields candidates for the last argument of ``line`` (which begins after ``kdir``), each with
    its description.
    """
    current = line[-1]
    try:
        before, name, rest = split_verb(line[:-1])
    except UsageError as error:
        # The cursor is at the value of an option before the verb.
        option = _named(GLOBAL_OPTIONS, line[-2]) if "needs a value" in error.message else None
        if option is not None:
            yield from _values(option, current, line[:-1])
        return
    if not name:
        yield from _first_message(current)
        return
    verb = load_verb(name)
    if verb is None:
        return
    yield from _in_verb(verb, rest, current, [*before, *rest])


def _first_message(current: str) -> Iterator[tuple[str, str]]:
    if current.startswith("-"):
        yield from _option_names(GLOBAL_OPTIONS, current)
        return
    for names in GROUPS.values():
        for name in names:
            if name.startswith(current):
                verb = load_verb(name)
                yield name, verb.summary if verb else ""


def _in_verb(
    verb: Verb, rest: Sequence[str], current: str, answered: Sequence[str]
) -> Iterator[tuple[str, str]]:
    options = verb.all_options()
    positional = 0
    pending: Option | None = None
    for part in rest:
        if pending is not None:
            pending = None
        elif part.startswith("-") and part != "-":
            option = _named(options, part)
            pending = option if option is not None and option.value and "=" not in part else None
        else:
            positional += 1
    if pending is not None:
        yield from _values(pending, current, answered)
    elif current.startswith("--") and "=" in current:
        name, _, value = current.partition("=")
        option = _named(options, name)
        if option is not None:
            for part, meaning in _values(option, value, answered):
                yield f"{name}={part}", meaning
    elif current.startswith("-"):
        given = set(rest)
        yield from _option_names(
            tuple(o for o in options if o.repeated or not given & set(o.names)), current
        )
    else:
        argument = _at(verb.arguments, positional)
        if argument is not None:
            yield from _values(argument, current, answered)


def _at(arguments: tuple[Argument, ...], position: int) -> Argument | None:
    for argument in arguments:
        if argument.most is None or position < argument.most:
            return argument
        position -= argument.most
    return None


def _named(options: Sequence[Option], part: str) -> Option | None:
    name = part.partition("=")[0]
    return next((option for option in options if name in option.names), None)


def _option_names(options: Sequence[Option], current: str) -> Iterator[tuple[str, str]]:
    for option in options:
        name = option.names[-1]
        if name.startswith(current):
            yield name, option.help


def _values(
    wanted: Option | Argument, current: str, answered: Sequence[str]
) -> Iterator[tuple[str, str]]:
    match wanted.completes:
        case "path":
            yield from ((path, "") for path in _paths(current, answered))
        case "context":
            from resolver.user_config import load_contexts

            for context in load_contexts().by_name.values():
                if context.name.startswith(current):
                    yield context.name, ",".join(context.servers)
        case "file":
            yield from ((name, "") for name in _files(current))
        case "operations" | "key" | "assignment":
            yield from ((part, "") for part in _message(wanted.completes, current))
        case _:
            yield from ((choice, "") for choice in wanted.choices if choice.startswith(current))


def _message(what: str, current: str) -> Iterator[str]:
    match what:
        case "operations":  # several, separated by commas
            before, comma, last = current.rpartition(",")
            yield from (f"{before}{comma}{one}" for one in OPERATIONS if one.startswith(last))
        case "key":
            yield from (key for key in KEYS if key.startswith(current))
        case _:
            known = (key if key.endswith(".") else f"{key}=" for key in KEYS)
            yield from (one for one in known if one.startswith(current))


def _files(current: str) -> Iterator[str]:
    folder, name = os.path.split(current)
    with os.scandir(folder or ".") as found:
        for entry in sorted(found, key=lambda entry: entry.name):
            if entry.name.startswith(name) and (name or not entry.name.startswith(".")):
                yield os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")


def _paths(current: str, answered: Sequence[str]) -> list[str]:
    """Returns paths that begin with ``current``, from recent listings or from the servers."""
    from resolver.cli.disk_hints import FRESH_SECONDS, MOST_NAMES, ListingCache

    if not current.startswith("/"):
        return [] if current else ["/"]
    directory, _, start = current.rpartition("/")
    directory = directory or "/"
    servers, login = _servers(answered), _login(answered)
    known = ListingCache(servers, login)
    names = known.load(directory, start, most_age_seconds=FRESH_SECONDS)
    if names is None:
        more = {**(login._asdict() if any(login) else {}), "allow": _allow(answered)}
        names = _send_request(servers, more, directory, start)
        if names is not None and len(names) < MOST_NAMES:
            known.store(directory, start, names)
    if names is None:
        names = known.load(directory, start, most_age_seconds=OLD_SECONDS) or []
    # System entries are offered only after their underscore is typed.
    shown = [name for name in names if start.startswith("_") or not name.startswith("__")]
    return [f"{directory.rstrip('/')}/{name}" for name in shown]


def _servers(answered: Sequence[str]) -> tuple[str, ...]:
    from resolver.user_config import choose_servers

    return choose_servers(
        _error_text(answered, "--at"), _error_text(answered, "--context"), os.environ
    )


def _login(answered: Sequence[str]) -> LoginSettings:
    from resolver.user_config import choose_credentials

    return choose_credentials(
        _error_text(answered, "--at"), _error_text(answered, "--context"), os.environ
    )


def _allow(answered: Sequence[str]) -> tuple[str, ...] | None:
    from resolver.user_config import choose_allow

    return choose_allow(
        _error_text(answered, "--at"), _error_text(answered, "--context"), os.environ
    )


def _error_text(parts: Sequence[str], name: str) -> str:
    for part, following in zip(parts, [*parts[1:], ""], strict=False):
        if part == name:
            return following
        if part.startswith(f"{name}="):
            return part.partition("=")[2]
    return ""


def _send_request(
    servers: Sequence[str], login: dict[str, Any], directory: str, start: str
) -> list[str] | None:
    """Returns the names that begin with ``start``, from the servers: none if the directory is
    absent or denied, and None after another error.
    """
    from resolver.cli.disk_hints import MOST_NAMES
    from resolver.cli.entry_rows import display_name
    from resolver.client import Resolver
    from resolver.errors import Absent, Denied, KdirError
    from resolver.path import is_segment

    try:
        with Resolver(servers, timeout_seconds=ASK_SECONDS, **login) as resolver:
            listing = resolver.list(
                directory, name_glob=f"{start}*", page_size=MOST_NAMES, include_system=True
            )
            names: list[str] = []
            for one in listing:
                if str(one.path) == directory or len(names) >= MOST_NAMES:
                    break
                name = display_name(one.entry).text
                # A shell inserts candidates unchanged, and ``start`` may itself contain a ``*``.
                if is_segment(name.removesuffix("/")) and name.startswith(start):
                    names.append(name)
            return names
    except (Absent, Denied):
        return []
    except KdirError:
        return None
