"""Files that are either written whole or not at all."""

import io
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def written_whole(
    path: str | pathlib.Path | io.BufferedIOBase, suffix: str | None = None
) -> Iterator[io.BufferedIOBase]:
    """
    Open a file for writing that takes its place only when everything has been written.

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
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
