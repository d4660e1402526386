"""One process at a time in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where processes have to be kept apart by hand
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """
    Wait until no other process is in here. The lock of a process that has ended no longer counts.

    :param folder: made when it is missing
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
