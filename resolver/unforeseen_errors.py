"""Reports unexpected errors, with the traceback in a file, and outputs that cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

from resolver.printable import printable
from resolver.redaction import redacted
from resolver.user_config import cache_folder

__all__ = [
    "EXIT_INTERNAL",
    "EXIT_UNWRITABLE",
    "drop_output",
    "raise_if_unwritable",
    "report_unforeseen",
    "report_unwritable",
]

EXIT_INTERNAL: Final = 70
"""EX_SOFTWARE of sysexits.h: exit code of an unexpected error."""
EXIT_UNWRITABLE: Final = 74
"""EX_IOERR of sysexits.h: exit code if the output cannot be written, as on a full disk."""
_UNWRITABLE: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}  # EBADF: it is closed
)
_MOST_CHARACTERS: Final = 300


def report_unforeseen(error: Exception, command: str, *, debug: bool) -> int:
    """Prints one sentence on stderr, after the traceback if ``debug``; returns the exit code."""
    import traceback

    text = "".join(traceback.format_exception(error))
    lines = text.rstrip().splitlines() if debug else []
    shown = str(error).strip().partition("\n")[0][:_MOST_CHARACTERS]
    if isinstance(error, OSError) and error.strerror:
        shown = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        drop_output()
    log = _write_log(f"{command}\n{text}")
    where = f"; details: {log}" if log else "; --debug shows where"
    lines.append(f"error: unforeseen: {type(error).__name__}: {shown}{where}")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    sys.stderr.writelines(f"{printable(redacted(line))}\n" for line in lines)
    return EXIT_INTERNAL


def report_unwritable(error: Exception) -> int:
    """Prints one sentence on stderr and returns the exit code, if an error means that an output
    cannot be written; else returns 0.
    """
    if not isinstance(error, OSError) or error.filename or error.errno not in _UNWRITABLE:
        return 0
    drop_output()
    sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
    return EXIT_UNWRITABLE


def raise_if_unwritable(error: OSError, file: str) -> None:
    """Raises an error that ``report_unwritable`` reports, if the opened output ``file`` cannot be
    written, as on a full disk.
    """
    if error.errno in _UNWRITABLE:
        raise OSError(error.errno, f"{file}: {error.strerror}") from error


def drop_output() -> None:
    """Sends stdout to the null device, so that buffered output does not fail again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_log(text: str) -> str:
    """Writes an unexpected error to the user's cache, in place of the previous one; returns the
    file's path; empty if it cannot be written.
    """
    path = Path(cache_folder()) / "last-error.log"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A new file: others may read an existing one, and command lines may hold secrets.
        path.unlink(missing_ok=True)
        opener = partial(os.open, mode=0o600)
        with open(path, "x", encoding="utf-8", errors="replace", opener=opener) as log:
            log.write(redacted(text))
    except OSError:
        return ""
    return str(path)
