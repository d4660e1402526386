"""Files that are either written whole or not at all."""

import io
import os
import pathlib
import pickle
import re
import secrets
import shutil
import socket
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from stable_baselines3.common.save_util import open_path

_HOST = re.sub(r"\W", "_", socket.gethostname())
_PARTIAL = re.compile(rf"\..+\.{_HOST}-(\d+)-[0-9a-f]+\.partial")
# What follows a pickle: this word, and the checksum of all bytes before it. Whoever reads pickles passes over it.
_CHECKSUM = struct.Struct("<8sI")
_WORD = b"crc32 = "
_CHUNK = 2**20


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


def write_pickle(path: str | pathlib.Path | io.BufferedIOBase, content: Any) -> None:
    """
    Pickle something, with a checksum, whole or not at all. SB3's ``load_from_pkl`` reads it too.

    :param path: where to; ``.pkl`` is added to a path without a suffix, and an open file is written to directly
    :param content: what to write
    """
    with atomic_write(path, suffix="pkl") as file:
        checked = _ChecksumWriter(file)
        pickle.dump(content, checked, protocol=pickle.HIGHEST_PROTOCOL)
        file.write(_CHECKSUM.pack(_WORD, checked.checksum))


def read_pickle(path: str | pathlib.Path | io.BufferedIOBase) -> Any:
    """
    Read what ``write_pickle`` or SB3's ``save_to_pkl`` wrote. Like every pickle it may run code: read only files that
    you trust. One that is damaged is refused, before anything of it is run where its checksum can be read.

    :param path: the file, with or without ``.pkl``, or an open file
    :return: what was written
    """
    file = open_path(path, "r", verbose=0, suffix="pkl")
    try:
        start = file.tell()
        checked = _check_checksum(file, start)
        file.seek(start)
        content = pickle.load(file)
        if not checked and file.read(1):
            raise ValueError("what follows its content is not a checksum")
    except Exception as error:  # there is nothing that a pickle with other bits in it may not raise
        raise ValueError(f"{path} is damaged, or was never saved here ({type(error).__name__}: {error}).") from error
    finally:
        if isinstance(path, (str, pathlib.Path)):
            file.close()
    return content


class _ChecksumWriter:
    """
    A file that keeps the checksum of what is written to it.

    :param file: the file
    """

    def __init__(self, file: io.BufferedIOBase) -> None:
        self.file, self.checksum = file, 0

    def write(self, data: Any) -> int:
        """
        :param data: bytes
        :return: how many were written
        """
        self.checksum = zlib.crc32(data, self.checksum)
        return self.file.write(data)


def _check_checksum(file: io.BufferedIOBase, start: int) -> bool:
    """
    Refuse a file with a checksum that is not that of its content. SB3's have none.

    :param file: a file
    :param start: where the content begins
    :return: whether there is a checksum
    """
    end = file.seek(0, os.SEEK_END) - _CHECKSUM.size
    if end < start:
        return False
    file.seek(end)
    word, expected = _CHECKSUM.unpack(file.read(_CHECKSUM.size))
    if word != _WORD:
        return False
    file.seek(start)
    found, left = 0, end - start
    while left:
        chunk = file.read(min(left, _CHUNK))
        found, left = zlib.crc32(chunk, found), left - len(chunk)
    if found != expected:
        raise ValueError("its checksum is that of another content")
    return True


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
