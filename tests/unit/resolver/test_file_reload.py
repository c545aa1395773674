"""Values of files that are read again when these change."""

import subprocess
import sys
from pathlib import Path

_FORKED = """
import os, pathlib, signal, sys, threading
from resolver.file_reload import ReloadingValue
file, parent = pathlib.Path(sys.argv[1]), os.getpid()
is_reading, may_end = threading.Event(), threading.Event()

def read():
    found = file.read_text()
    if found == "new" and os.getpid() == parent:
        is_reading.set()
        may_end.wait()
    return found

file.write_text("old one")
value = ReloadingValue([file], read)
file.write_text("new")
reader = threading.Thread(target=value.value, kwargs={"look": True})
reader.start()
is_reading.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    os._exit(0 if value.value(look=True) == value.value(look=True) == "new" else 2)
_, status = os.waitpid(child, 0)
may_end.set()
reader.join()
print(os.waitstatus_to_exitcode(status))
"""


def test_G11_a_process_that_was_forked_during_a_reading_reads_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, tmp_path / "file"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "0", done.stderr
