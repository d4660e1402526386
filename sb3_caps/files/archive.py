"""A description and arrays in one file: reading it runs nothing, and takes no more memory than the file has bytes."""

import io
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.save_util import open_path

from sb3_caps.files.plain import check_no_marks
from sb3_caps.files.save_util import atomic_write
from sb3_caps.files.saved_models import ModelPath

FORMAT = "sb3_caps export 8"
FIRST = "description.npy"
# What the file begins with: a member of this name, and in it these words
_LOCAL_HEADER = 30
_FORMAT_WORDS = re.compile(r'\{"format": "([^"]{1,50})"')
_HEAD = 2**10
# A description has a few kB for each source, and JSON takes many times as much memory as its text
_LONGEST_DESCRIPTION = 2**25
# As numpy writes it: numbers of up to 8 bytes, or one text
_MAGIC = b"\x93NUMPY\x01\x00"
_NUMBERS = re.compile("[<|][fiu][1248]")
_TYPE, _SHAPE = rf"'({_NUMBERS.pattern}|<U[0-9]{{1,9}})'", r"\(([0-9, ]*)\)"
_HEADER = re.compile(rf"\{{'descr': {_TYPE}, 'fortran_order': False, 'shape': {_SHAPE}, \}} *\n".encode())


def write_archive(path: str | Path, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """
    Write a file that numpy can read too.

    :param path: the file; ``.npz`` is added to a path without a suffix
    :param content: the description, of plain values
    :param arrays: of numbers
    """
    for name, array in arrays.items():
        if not array.size or not _NUMBERS.fullmatch(array.dtype.str):
            raise ValueError(f"{name} is of {array.size} numbers of type {array.dtype}, and cannot be exported.")
    content = {"format": FORMAT, "arrays": len(arrays), **content}
    members = {"description": np.array(json.dumps(content, allow_nan=False)), **arrays}
    with atomic_write(path, suffix="npz") as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in members.items():
            # Not compressed: parameters hardly shrink, and whoever reads them knows what they will take
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)


def is_archive(path: ModelPath) -> bool:
    """
    :param path: a file
    :return: whether ``write_archive`` wrote it, as far as its first bytes tell
    """
    with _opened(path) as file:
        head = file.read(_LOCAL_HEADER + len(FIRST))
    name = FIRST.encode()
    return (
        head.startswith(b"PK\3\4") and head[26:28] == len(name).to_bytes(2, "little") and head[_LOCAL_HEADER:] == name
    )


def read_archive(path: ModelPath) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """
    :param path: what ``write_archive`` wrote
    :return: the description and the arrays
    """
    with _opened(path) as file:
        size = file.seek(0, io.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            _check_format(archive)
            members = archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise ValueError("it is compressed")
            if sum(member.file_size for member in members) > size:
                raise ValueError("its parts are larger than the file")
            names = [member.filename.removesuffix(".npy") for member in members]
            content = _read_description(archive)
            arrays = {name: _array(archive.read(f"{name}.npy")) for name in names[1:]}
    if not len(arrays) == len(names) - 1 == content.pop("arrays", None):
        raise ValueError(f"{len(arrays)} arrays are found in it, which are not those that it had")
    return content, arrays


@contextmanager
def _opened(path: ModelPath) -> Iterator[Any]:
    file = open_path(path, "r", verbose=0, suffix="zip")
    start = file.tell()
    try:
        yield file
    finally:
        if isinstance(path, (str, Path)):
            file.close()
        else:
            file.seek(start)


def _check_format(archive: zipfile.ZipFile) -> None:
    """Before anything else is read: other formats may be of any size, and compressed."""
    if archive.namelist()[:1] != [FIRST]:
        raise ValueError("it does not begin with a description")
    if archive.getinfo(FIRST).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # Others say themselves how much memory they need
        raise ValueError("it is compressed")
    with archive.open(FIRST) as member:
        text = _text(member.read(_HEAD))
    words = _FORMAT_WORDS.match(text)
    if words is None or words[1] != FORMAT:
        raise ValueError(f"it is '{text[:50] if words is None else words[1]}', and this version reads '{FORMAT}'")


def _read_description(archive: zipfile.ZipFile) -> dict[str, Any]:
    if archive.getinfo(FIRST).file_size > _LONGEST_DESCRIPTION:
        raise ValueError("its description is too long")
    content = json.loads(_text(archive.read(FIRST)), object_pairs_hook=_object, parse_constant=_refuse_constant)
    check_no_marks(content, "description")
    del content["format"]
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name is there twice among {', '.join(key for key, _ in pairs)}")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


def _parsed(data: bytes) -> tuple[str, tuple[int, ...], int]:
    """
    Read a header without evaluating it.

    :param data: the first bytes of an array as numpy writes it
    :return: the type and the shape of the array, and where its numbers begin
    """
    start = len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little")
    match = _HEADER.fullmatch(data, len(_MAGIC) + 2, start)
    if not data.startswith(_MAGIC) or match is None:
        raise ValueError("a part of it is not a plain array of numbers")
    return match[1].decode(), tuple(int(size) for size in match[2].split(b",") if size.strip()), start


def _text(data: bytes) -> str:
    """
    :param data: an array that is a text, or the beginning of one
    :return: the text
    """
    kind, shape, start = _parsed(data)
    if not kind.startswith("<U") or shape:
        raise ValueError("its description is not text")
    return data[start : start + (len(data) - start) // 4 * 4].decode("utf-32-le").rstrip("\0")


def _array(data: bytes) -> np.ndarray:
    """
    :param data: an array as numpy writes it
    :return: the array
    """
    kind, shape, start = _parsed(data)
    if kind.startswith("<U") or math.prod(shape) * int(kind[-1]) != len(data) - start:
        raise ValueError(f"an array of it has not the size of {shape}")
    # A copy may be written to, and begins where numbers of its size may
    return np.frombuffer(data, kind, offset=start).reshape(shape).copy()
