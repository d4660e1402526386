"""Files that are either written whole or not at all."""

import io
import os
import pathlib
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_HOST = re.sub(r"\W", "_", socket.gethostname())
_PARTIAL = re.compile(rf"\..+\.{_HOST}-(\d+)-[0-9a-f]+\.partial")


@contextmanager
def atomic_write(
    path: str | pathlib.Path | io.BufferedIOBase, suffix: str | None = None
) -> Iterator[io.BufferedIOBase]:
    """
    Open a file for writing that takes its place only when everything has been written and is on the disk.

    Of two writers the last one wins, and a reader sees either the old file or a new one. A symbolic link stays, and
    what it points to is replaced; the permissions of a file that is there already stay too.

    :param path: where to; an open file is written to directly
    :param suffix: added to a path that has none, as SB3 does
    :return: the file to write to
    """
    if not isinstance(path, (str, pathlib.Path)):
        yield path
        return
    path = pathlib.Path(path)
    if suffix is not None and path.suffix == "":
        path = pathlib.Path(f"{path}.{suffix}")
    path = pathlib.Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    partial = partial_path(path)
    try:
        with open(partial, "xb") as file:
            with suppress(FileNotFoundError):
                partial.chmod(stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def partial_path(path: pathlib.Path) -> pathlib.Path:
    """
    :param path: a file or folder to write
    :return: a hidden name beside it that no other writer has, and that tells which process writes there
    """
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.partial")


def remove_leftovers(folder: pathlib.Path) -> None:
    """
    Remove what writers that were killed have left behind.

    :param folder: where they wrote
    """
    for found in os.scandir(folder):
        match = _PARTIAL.fullmatch(found.name)
        if match is None or is_running(int(match[1])):
            continue
        if found.is_dir(follow_symlinks=False):
            shutil.rmtree(found.path, ignore_errors=True)
        else:
            pathlib.Path(found.path).unlink(missing_ok=True)


def is_running(process: int) -> bool:
    """
    :param process: the number of a process of this machine
    :return: whether it is there; always, where that cannot be asked
    """
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # Another user's
        return True
    return True


def sync_folder(folder: pathlib.Path) -> None:
    """
    Bring the names of a folder onto the disk, so that a new file is still there after a power cut.

    :param folder: the folder
    """
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
