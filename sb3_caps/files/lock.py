"""One process at a time in a folder."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where processes have to be kept apart by hand
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def one_at_a_time(folder: Path, wait: bool = True) -> Iterator[None]:
    """
    Keep a folder to this process. The lock of a process that has ended no longer counts.

    :param folder: made when it is missing
    :param wait: whether to wait until no other process is in here, or to refuse, as studies do
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Opened for appending: what the holder wrote stays until the lock is ours
    with (folder / LOCK).open("a+") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise ValueError(
                    f"Another study is at work in {folder} (process {holder}): "
                    "wait until it ends, or pass another folder with --results."
                ) from error
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
