"""One run of a study: its folder, what it leaves there, and what becomes of files that are damaged."""

import json
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sb3_caps.files.save_util import atomic_write

Row = dict[str, float]


@dataclass(frozen=True)
class Run:
    """
    One run of a study: a folder, and everything that determines what happens in it.

    :param folder: where its config, curve and model go
    :param config: all that tells it apart from the others, as plain values
    :param steps: how long it takes, for the progress display
    :param result: the file that is written last: a run that has it is complete
    """

    folder: Path
    config: dict[str, Any]
    steps: int
    result: str = "finished.json"

    @property
    def curve(self) -> Path:
        """The learning curve so far; its first column says how far the run has come."""
        return self.folder / "curve.csv"

    @property
    def finished(self) -> bool:
        """Whether the run is complete. A finished run is never repeated."""
        return (self.folder / self.result).is_file()

    def steps_done(self) -> int:
        """How far the run has come, by its curve."""
        if self.finished:
            return self.steps
        try:
            return min(int(next(iter(read_rows(self.curve)[-1].values()))), self.steps)
        except (OSError, ValueError, IndexError):
            return 0

    def damaged(self) -> dict[Path, str]:
        """Return the files of a finished run that cannot be read, and why."""
        errors = {}
        for name in sorted({"curve.csv", "model.zip", self.result}):
            file = self.folder / name
            error = check_file(file)
            # What is not there is not damaged, and another process may take it away meanwhile
            if error is not None and file.is_file():
                errors[file] = error
        return errors


def check_file(file: Path) -> str | None:
    """
    Check that a file of results can be read.

    :param file: a table, a JSON file, or a zip file as models and arrays are
    :return: why it cannot be read, None if it can
    """
    try:
        if file.suffix == ".csv":
            read_rows(file)
        elif file.suffix == ".json":
            json.loads(file.read_text())
        elif file.suffix in (".zip", ".npz"):
            with zipfile.ZipFile(file) as opened:
                broken, n_entries = opened.testzip(), len(opened.infolist())
            if broken is not None:
                return f"{broken} in it is damaged"
            # A directory with other bits in it may hide entries: its end, 22 bytes, tells their number
            with file.open("rb") as raw:
                raw.seek(-22, os.SEEK_END)
                end = raw.read()
            expected = int.from_bytes(end[10:12], "little")
            if end.startswith(b"PK\5\6") and n_entries != expected:
                return f"{n_entries} of {expected} entries in it are found"
    except Exception as error:  # there is nothing that a zip file with other bits in it may not raise
        return str(error) or type(error).__name__
    return None


def set_aside(path: Path) -> Path:
    """
    Rename a damaged file or folder, so that it can be made again and still be looked at.

    :param path: the file or folder
    :return: its new name
    """
    number = 1
    while (target := path.with_name(f"{path.name}.damaged_{number}")).exists():
        number += 1
    return path.rename(target)


def write_json(file: Path, content: Any) -> None:
    """
    Write a JSON file, atomically.

    :param file: where to, whole or not at all
    :param content: plain values
    """
    write_text(file, json.dumps(content, indent=2, ensure_ascii=False, default=float) + "\n")


def write_text(file: Path, text: str) -> None:
    """
    Write a text file, atomically.

    :param file: where to, whole or not at all
    :param text: what to write
    """
    with atomic_write(file) as opened:
        opened.write(text.encode())


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """
    Write a table as comma-separated values.

    :param file: where to, whole or not at all
    :param rows: numbers by name
    """
    lines = [",".join(rows[0]), *(",".join(f"{value:.10g}" for value in row.values()) for row in rows)]
    write_text(file, "\n".join([*lines, ""]))


def read_rows(file: Path) -> list[Row]:
    """
    Read a table.

    :param file: what ``write_rows`` wrote
    :return: the rows
    """
    text = file.read_text()
    try:
        header, *lines = (line.split(",") for line in text.splitlines())
        if not text.endswith("\n"):
            raise ValueError("its last line is cut")
        return [dict(zip(header, map(float, line), strict=True)) for line in lines]
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
