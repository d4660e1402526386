"""Tables of all studies, in Markdown."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from sb3_caps.studies.shared.records import Record
from sb3_caps.studies.shared.statistics import bootstrap_interval, first_reached, interquartile_mean, median_reached

# The columns of the curves of each method, of shape (seeds, evaluations)
Curves: TypeAlias = dict[str, dict[str, np.ndarray]]
SHARES = (0.5, 0.9, 0.95)


def columns_of(records: Iterable[Record]) -> dict[str, np.ndarray]:
    """
    Collect the curves of several seeds.

    :param records: of several seeds
    :return: the columns of their curves, each of shape (seeds, evaluations)
    """
    tables = [{name: column for name, column in record.items() if isinstance(column, list)} for record in records]
    length = min(len(table["steps"]) for table in tables)
    return {name: np.array([table[name][:length] for table in tables]) for name in tables[0]}


def steps_table(curves: Curves, labels: Mapping[str, str]) -> str:
    """
    Medians over seeds; how many seeds got there; what is left of it in the last fifth of a run.

    :param curves: the columns of each method
    :param labels: what to call the methods
    :return: a table in Markdown
    """
    header = [
        *(f"steps to {share:.0%}" for share in SHARES),
        "end (interquartile mean of last fifth, 95% interval)",
        "lowest of it",
    ]
    rows = []
    for method, columns in curves.items():
        shares, steps = columns["share"], columns["steps"][0]
        last = shares[:, -max(shares.shape[1] // 5, 1) :]
        ends = last.mean(axis=1)
        low, high = bootstrap_interval(ends, interquartile_mean)
        rows.append(
            [
                labels[method],
                str(len(shares)),
                *(median_reached(first_reached(steps, shares, wanted)) for wanted in SHARES),
                f"{interquartile_mean(ends):.1%} ({low:.1%} to {high:.1%})",
                f"{last.min():.1%}",
                f"{columns['seconds'][:, -1].mean() / 60:.1f}",
            ]
        )
    return markdown(["method", "seeds", *header, "minutes"], rows)


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """
    Write a table in Markdown.

    :param header: the titles of the columns
    :param rows: the cells
    :return: a table
    """
    titles = list(header)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
