"""Figures of all studies: one look, and one colour for each method on every page."""

import itertools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sb3_caps.common.colours import PRIMITIVE_COLOUR, SOURCE_COLOURS
from sb3_caps.common.extras import require
from sb3_caps.common.save_util import atomic_write
from sb3_caps.studies.shared.statistics import half_width
from sb3_caps.studies.shared.tables import Curves

INK = "#2b2f3a"
METHOD_COLOURS = {
    "CAPS": "#d62839",
    "CAPS, paper": "#d62839",
    "CAPS, recommended": "#7a1020",
    "CAPS, α_β = 20 (ours)": "#7a1020",
    "CAPS, β = 0.5": "#f2a65a",
    "CAPS, β = 1": "#b07d2b",
    "CAPS, useless sources": "#cc79a7",
    "CAPS, source features": "#7a1020",
    "Q-learning": "#4a4e69",
    "Q-learning, ε of CAPS": "#8d99ae",
    "DQN": "#4a4e69",
    "double DQN": "#8d99ae",
    "DQN, source features": "#56b4e9",
    "PRQL": "#0072b2",
    "OPS-TL": "#009e73",
    "Option-Critic": "#9c6ade",
}


def method_colours(labels: Collection[str]) -> dict[str, str]:
    """
    :param labels: all methods of a study, in an order that stays
    :return: the colour of each: its own where it has one, others in turn
    """
    fixed = {label: METHOD_COLOURS[label] for label in labels if label in METHOD_COLOURS}
    others = itertools.cycle(c for c in (*SOURCE_COLOURS, PRIMITIVE_COLOUR) if c not in fixed.values())
    return {label: fixed.get(label) or next(others) for label in labels}


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, np.ndarray]:
    """
    :param width: in inches
    :param height: in inches
    :param columns: the number of axes side by side
    :param rows: the number of axes above each other
    :return: a figure that needs no window system, and its axes of shape (rows, columns)
    """
    figure = require("matplotlib.figure", "studies").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save(figure: Any, path: Path) -> Path:
    """
    :param figure: what :func:`new_figure` made
    :param path: a picture file; its folder is made when it is missing
    :return: the path
    """
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:] or "png", dpi=130, bbox_inches="tight")
    return path


def draw_mean(ax: Any, x: np.ndarray, samples: np.ndarray, colour: str, label: str, style: str = "-") -> None:
    """
    Draw the mean over runs with its 95% interval.

    :param ax: the axes
    :param x: where the points are
    :param samples: of shape (runs, points)
    :param colour: of line and band
    :param label: of the line
    :param style: of the line
    """
    mean, half = samples.mean(axis=0), half_width(samples)
    ax.plot(x, mean, color=colour, linestyle=style, linewidth=1.8, label=label)
    ax.fill_between(x, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)


def tidy(ax: Any) -> None:
    """
    Leave out what carries no information.

    :param ax: the axes
    """
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.2)


def draw_curves(curves: Curves, labels: Mapping[str, str], optimum: float, title: str) -> Any:
    """
    The mean discounted reward of each method, with 95% intervals over seeds, and each run as a thin line.

    :param curves: the columns of each method
    :param labels: what to call the methods, all that the study has; each has its colour, whichever are drawn
    :param optimum: the exact one
    :param title: of the figure
    :return: the figure
    """
    colours = method_colours(labels.values())
    figure, axes = new_figure(7.5, 4.5)
    ax = axes[0, 0]
    for method, columns in curves.items():
        # The exact mean over all starts, where it is known: the paper's few episodes are a noisy sample of it
        steps, values = columns["steps"][0] / 1000, columns.get("value", columns["evaluated"])
        colour = colours[labels[method]]
        draw_mean(ax, steps, values, colour, labels[method])
        if len(values) > 1:
            # A run finds the way or it does not: a mean does not tell
            ax.plot(steps, values.T, color=colour, linewidth=0.6, alpha=0.6)
    ax.axhline(optimum, color=INK, linestyle=":", linewidth=1, label="exact optimum")
    # The interval of two or three seeds reaches far beyond what is possible
    ax.set(xlabel="thousand environment steps", ylabel="mean discounted reward of an episode", ylim=(0, 1.25 * optimum))
    ax.set_title(title, fontsize=10)
    tidy(ax)
    ax.legend(fontsize=8, frameon=False)
    return figure
