"""Figures of all studies: one look, and one colour for each method on every page."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sb3_caps.colours import PRIMITIVE_COLOUR, SOURCE_COLOURS
from sb3_caps.extras import require
from sb3_caps.files.save_util import atomic_write
from sb3_caps.studies.shared.statistics import half_width
from sb3_caps.studies.shared.tables import Curves

INK = "#2b2f3a"
# Pages show pictures some 800 pixels wide: a figure that is no wider than this many inches can be read there
PAGE_WIDTH = 9.0
TITLE_SIZE, TEXT_SIZE = 12, 10
METHOD_COLOURS = {
    "CAPS": "#d62839",
    "CAPS, recommended": "#d62839",
    "CAPS, paper": "#7a1020",
    "CAPS, α_β = 20 (ours)": "#7a1020",
    "CAPS, source features": "#7a1020",
    "CAPS, β with the values": "#7b4fa6",
    "CAPS, β = 0.5": "#f2a65a",
    "CAPS, β = 1": "#b07d2b",
    "CAPS, no sources": "#ee9aa3",
    "CAPS, useless sources": "#f7a072",
    "Q-learning": "#4a4e69",
    "Q-learning, ε of CAPS": "#8d99ae",
    "DQN": "#4a4e69",
    "DQN, source features": "#56b4e9",
    "PRQL": "#0072b2",
    "OPS-TL": "#009e73",
    "jump-start": "#e69f00",
    "QDagger": "#cc79a7",
    "Option-Critic": "#9c6ade",
}
# As the folders of runs call them, too: `ops_tl` is OPS-TL
_BY_NAME = {name.lower(): colour for name, colour in METHOD_COLOURS.items()}


def method_colours(labels: Collection[str]) -> dict[str, str]:
    """
    Choose the colours of methods.

    :param labels: all methods of a figure, in an order that stays
    :return: the colour of each: its own where it has one, a shade of the method's for a variant or a run of it
        ("CAPS, harmful", "caps CartPole-v1_1"), and for others one that no method here has
    """
    found = {label: METHOD_COLOURS[label] for label in labels if label in METHOD_COLOURS}
    free = sorted((*SOURCE_COLOURS, PRIMITIVE_COLOUR), key=list(METHOD_COLOURS.values()).__contains__)
    for label in labels:
        if label not in found:
            own = _BY_NAME.get(re.split("[ ,]", label.lower().replace("_", "-"))[0])
            shades = [] if own is None else [_lighter(own, times) for times in range(6)]
            unused = [colour for colour in (*shades, *free) if colour not in found.values()]
            found[label] = unused[0] if unused else free[len(found) % len(free)]
    return {label: found[label] for label in labels}


def _lighter(colour: str, times: int) -> str:
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - channel) * 0.7**times):02x}" for channel in channels)


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Any, np.ndarray]:
    """
    Make a figure without a window system.

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
    Write a figure to a file.

    :param figure: what :func:`new_figure` made
    :param path: a picture file; its folder is made when it is missing
    :return: the path
    """
    with atomic_write(path) as file:
        figure.savefig(file, format=path.suffix[1:] or "png", dpi=150, bbox_inches="tight")
    return path


def draw_mean(
    ax: Any,
    x: np.ndarray,
    samples: np.ndarray,
    colour: str,
    label: str,
    style: str = "-",
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> None:
    """
    Draw the mean over runs with its 95% interval, from three runs on: that of two, by Student's t, spans everything.

    :param ax: the axes
    :param x: where the points are
    :param samples: of shape (runs, points)
    :param colour: of line and band
    :param label: of the line
    :param style: of the line
    :param bounds: the lowest and the highest value that there can be: the band ends there
    """
    mean, half = samples.mean(axis=0), half_width(samples)
    ax.plot(x, mean, color=colour, linestyle=style, linewidth=1.8, label=label)
    if len(samples) < 3:
        return
    low, high = (np.clip(edge, *bounds) for edge in (mean - half, mean + half))
    ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


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
        # Sampled episodes may happen to be better than the mean of all
        draw_mean(ax, steps, values, colour, labels[method], bounds=(0.0, max(optimum, values.max())))
        if len(values) > 1:
            # A run finds the way or it does not: a mean does not tell
            ax.plot(steps, values.T, color=colour, linewidth=0.6, alpha=0.6)
    ax.axhline(optimum, color=INK, linestyle=":", linewidth=1, label="exact optimum")
    ax.set(xlabel="thousand environment steps", ylabel="mean discounted reward of an episode", ylim=(0, 1.1 * optimum))
    ax.set_title(title, fontsize=TITLE_SIZE)
    tidy(ax)
    ax.legend(fontsize=TEXT_SIZE, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
