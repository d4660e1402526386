"""The surface: every method at every reward and schedule of ε, and which of the paper's statements hold where."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sb3_caps.studies.grid.batches import TASKS
from sb3_caps.studies.grid.designs import CRITIC_SOURCES, HALF_LIVES, REWARDS, at
from sb3_caps.studies.grid.metrics import Study
from sb3_caps.studies.grid.verdicts import FAILED, HELD, NO_DIFFERENCE, OPPOSITE, UNDECIDED, better, difference
from sb3_caps.studies.shared.plots import INK, METHOD_COLOURS, PAGE_WIDTH, TEXT_SIZE, new_figure, save, tidy
from sb3_caps.studies.shared.statistics import Interval
from sb3_caps.studies.shared.tables import markdown

WITHIN = "OPS-TL, within the episode"
METHODS = ("CAPS", "CAPS, β = 0.5", "Q-learning", "PRQL", "OPS-TL", WITHIN, "Option-Critic")
# What has not been run yet
MISSING = "·"
MARKS = {HELD: "+", FAILED: "−", OPPOSITE: "<", NO_DIFFERENCE: "=", UNDECIDED: "?", MISSING: MISSING}


def cell(method: str, reward: float, half_life: float) -> str:
    """
    Name the variant of a cell of the surface.

    :param method: one of ``METHODS``
    :param reward: R
    :param half_life: K of ε
    :return: the variant that stands there, for methods to which R or K is nothing too
    """
    scaled = method in ("CAPS", "PRQL", "OPS-TL", WITHIN, "Option-Critic")
    explores = method not in ("PRQL", "Option-Critic")
    return at(method, reward if scaled else None, half_life if explores else None)


class Statement(NamedTuple):
    """
    A statement of the paper: one method is better than another on a task.

    :param words: the statement
    :param task: where
    :param first: the better method
    :param second: the worse one
    :param half_life: K of the worse one, if it is not that of the cell
    :param final: compare the last tenth of the episodes, in place of all
    """

    words: str
    task: str
    first: str
    second: str
    half_life: float | None = None
    final: bool = False


STATEMENTS = (
    Statement("CAPS is faster than Q-learning with K = 800", "g", "CAPS", "Q-learning", 800.0),
    Statement("CAPS is faster than Q-learning with the same K", "g", "CAPS", "Q-learning"),
    Statement("CAPS outperforms PRQL", "g", "CAPS", "PRQL"),
    Statement("CAPS outperforms OPS-TL, reuse falling over episodes", "g", "CAPS", "OPS-TL"),
    Statement("CAPS outperforms OPS-TL, reuse within the episode", "g", "CAPS", WITHIN),
    Statement("PRQL: negative transfer, worse than Q-learning", "g", "Q-learning", "PRQL"),
    Statement("with a fixed β of 0.5 the last tenth is worse", "g", "CAPS", "CAPS, β = 0.5", None, True),
    Statement("Option-Critic is worse than Q-learning", "g", "Q-learning", "Option-Critic"),
    Statement("CAPS is better than OPS-TL, over episodes", "g'", "CAPS", "OPS-TL"),
    Statement("CAPS is better than OPS-TL, within the episode", "g'", "CAPS", WITHIN),
    Statement("CAPS outperforms Q-learning with K = 800", "changed", "CAPS", "Q-learning", 800.0),
    Statement("CAPS outperforms Q-learning with the same K", "changed", "CAPS", "Q-learning"),
    Statement("CAPS outperforms PRQL", "changed", "CAPS", "PRQL"),
    Statement("CAPS outperforms OPS-TL, over episodes", "changed", "CAPS", "OPS-TL"),
    Statement("CAPS outperforms OPS-TL, within the episode", "changed", "CAPS", WITHIN),
    Statement("CAPS outperforms Option-Critic", "changed", "CAPS", "Option-Critic"),
)


def report(study: Study, folder: Path, margin: float) -> tuple[list[Path], str]:
    """
    Report the surface.

    :param study: the finished results
    :param folder: where to put the figure
    :param margin: a smaller difference of areas does not matter
    :return: the figure's path, and the tables
    """
    header = ["task", "K", "R", *METHODS]
    parts = [
        f"# The surface: {study.results.n_runs} runs of {study.results.episodes} episodes in each cell",
        "Area under the curve as a share of the optimum, with 95% intervals. R plays no role for Q-learning and a "
        f"fixed β, K none for PRQL and Option-Critic, whose runs share {CRITIC_SOURCES} sets of sources for each R.",
        markdown(header, area_rows(study)),
        "## Which statements hold where",
        f"+ held, < the opposite, = no difference above {margin:g}, − failed in another way, ? undecided, · not run; "
        f"from left to right R = {', '.join(f'{reward:g}' for reward in REWARDS)}.",
        markdown(["task", "statement", *(f"K = {k:g}" for k in HALF_LIVES)], statement_rows(study, margin)),
        "## How many statements hold in each cell",
        markdown(["OPS-TL's reuse", "statements", *(f"K = {k:g}" for k in HALF_LIVES)], count_rows(study, margin)),
    ]
    return [draw(study, folder / "surface.png")], "\n\n".join(parts) + "\n"


def area_rows(study: Study) -> Iterator[list[str]]:
    """
    Make the rows of areas.

    :param study: the finished results
    :return: a row of areas for each task, K and R
    """
    for task in TASKS:
        for half_life in HALF_LIVES:
            for reward in REWARDS:
                variants = [cell(method, reward, half_life) for method in METHODS]
                areas = [
                    str(Interval.of(study.area(variant, task))) if study.has(variant, task) else MISSING
                    for variant in variants
                ]
                yield [task, f"{half_life:g}", f"{reward:g}", *areas]


def statement_rows(study: Study, margin: float) -> Iterator[list[str]]:
    """
    Make the rows of statements.

    :param study: the finished results
    :param margin: a smaller difference does not matter
    :return: for each statement and K a mark for each R
    """
    for statement in STATEMENTS:
        marks = [
            " ".join(MARKS[judge(study, statement, reward, half_life, margin)] for reward in REWARDS)
            for half_life in HALF_LIVES
        ]
        yield [statement.task, statement.words, *marks]


def count_rows(study: Study, margin: float) -> Iterator[list[str]]:
    """
    Count the statements that hold.

    :param study: the finished results
    :param margin: a smaller difference does not matter
    :return: for each reading of OPS-TL and each K, how many statements hold at each R
    """
    for reading, other in (("OPS-TL", WITHIN), (WITHIN, "OPS-TL")):
        statements = [statement for statement in STATEMENTS if statement.second != other]
        counts = [
            " ".join(
                str(sum(judge(study, one, reward, half_life, margin) == HELD for one in statements))
                for reward in REWARDS
            )
            for half_life in HALF_LIVES
        ]
        yield ["within the episode" if reading == WITHIN else "over episodes", str(len(statements)), *counts]


def judge(study: Study, statement: Statement, reward: float, half_life: float, margin: float) -> str:
    """
    Judge a statement in one cell.

    :param study: the finished results
    :param statement: a statement
    :param reward: R
    :param half_life: K
    :param margin: a smaller difference does not matter
    :return: the verdict in this cell, ``MISSING`` if it has not been run
    """
    measure = study.last_tenth if statement.final else study.area
    first = cell(statement.first, reward, half_life)
    second = cell(statement.second, reward, statement.half_life or half_life)
    if not (study.has(first, statement.task) and study.has(second, statement.task)):
        return MISSING
    return better(difference(measure(first, statement.task), measure(second, statement.task)), margin)


def draw(study: Study, path: Path) -> Path:
    """
    Draw the surface.

    :param study: the finished results
    :param path: of the picture
    :return: the same
    """
    figure, axes = new_figure(PAGE_WIDTH, 8.6, columns=len(HALF_LIVES), rows=len(TASKS))
    for row, task in zip(axes, TASKS, strict=True):
        for ax, half_life in zip(row, HALF_LIVES, strict=True):
            for method in METHODS:
                rewards = [reward for reward in REWARDS if study.has(cell(method, reward, half_life), task)]
                if not rewards:
                    continue
                runs = np.array([study.area(cell(method, reward, half_life), task) for reward in rewards])
                found = [Interval.of(samples) for samples in runs]
                mean, half = np.array([(one.mean, one.half_width) for one in found]).T
                colour, style = (
                    METHOD_COLOURS[method.removesuffix(", within the episode")],
                    "--" if "," in method else "-",
                )
                ax.plot(rewards, runs, ".", color=colour, alpha=0.3, markersize=4, markeredgewidth=0)
                ax.plot(rewards, mean, color=colour, linestyle=style, label=method, linewidth=1.6)
                ax.fill_between(rewards, (mean - half).clip(0), (mean + half).clip(max=1), color=colour, alpha=0.15)
            where = "the changed map" if task == "changed" else task
            ax.set_title(f"{where}, K = {half_life:g}", fontsize=TEXT_SIZE, color=INK)
            ax.set(xscale="log", xlabel="reward R", ylabel="area, share of optimum", ylim=(0, 1))
            ax.set_xticks(REWARDS, [f"{reward:g}" for reward in REWARDS])
            ax.minorticks_off()
            ax.label_outer()
            tidy(ax)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=TEXT_SIZE)
    figure.suptitle(f"Mean and 95% interval over {study.results.n_runs} runs; dots are runs", color=INK)
    return save(figure, path)
