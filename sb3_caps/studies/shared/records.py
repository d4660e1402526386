"""What is remembered of runs where their folders are gone: one file of plain values, enough for a report."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sb3_caps.studies.shared.runs import Run, read_rows, write_text

# One run: what tells it apart from the others, and the columns of its curve, the steps of its evaluations among them
Record: TypeAlias = dict[str, Any]
RECORDS = "runs.json"


def write_records(folder: Path, records: Iterable[Record]) -> None:
    """
    Write records of runs as JSON.

    :param folder: where to, a line for each run
    :param records: plain values
    """
    write_text(folder / RECORDS, "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")


def record_of(run: Run, names: Sequence[str]) -> Record:
    """
    Make the record of a run.

    :param run: a run with a curve
    :param names: what of its config tells it apart
    :return: what to remember of it
    """
    rows = read_rows(run.curve)
    return {name: run.config[name] for name in names} | {name: [row[name] for row in rows] for name in rows[0]}


def with_published(own: Sequence[Record], files: Iterable[Path], names: Sequence[str]) -> list[Record]:
    """
    Add the records of published runs.

    :param own: records of one's own runs
    :param files: records of others, which are added where no run before them has the same names and the same length
    :param names: what tells runs apart
    :return: all of them
    """

    def key(record: Record) -> tuple[Any, ...]:
        return *(record[name] for name in names), record["steps"][-1]

    found = {key(record): record for record in own}
    for file in files:
        for record in json.loads(file.read_text()):
            found.setdefault(key(record), record)
    return list(found.values())
