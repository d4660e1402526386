"""Figures 1 to 7 of the grid study."""

from pathlib import Path
from typing import Any

import numpy as np

from sb3_caps.colours import SOURCE_COLOURS
from sb3_caps.studies.grid.batches import RECOMMENDED, SOURCE_TASKS, optimum, task
from sb3_caps.studies.grid.drawing import draw_goals, draw_map, draw_options, draw_termination
from sb3_caps.studies.grid.metrics import Study
from sb3_caps.studies.shared.plots import (
    INK,
    METHOD_COLOURS,
    PAGE_WIDTH,
    TEXT_SIZE,
    new_figure,
    save,
    tidy,
)
from sb3_caps.studies.shared.statistics import half_width
from sb3_caps.tabular.caps import sigmoid

DRAWN = ("CAPS", "CAPS, β = 0.5", RECOMMENDED, "Q-learning", "Q-learning, ε of CAPS", "PRQL", "OPS-TL", "Option-Critic")
DASHED = ("CAPS, β = 0.5", RECOMMENDED, "Q-learning, ε of CAPS")
CURVE_FIGURES = {"g": 2, "g'": 5, "changed": 7}
OPTION_NAMES = [*SOURCE_TASKS, "up", "down", "left", "right"]
# More points than pixels only make files large.
POINTS_APART = 10
# The run that Figures 3 and 4 show, as good as any other.
SHOWN_SEED = 0


def draw_figure(study: Study, number: int, folder: Path) -> list[Path]:
    """
    Draw a figure of the paper.

    :param study: the finished results
    :param number: the figure of the paper
    :param folder: where to put the pictures
    :return: their paths
    """
    if number in CURVE_FIGURES.values():
        name = next(name for name, figure in CURVE_FIGURES.items() if figure == number)
        return [learning_curves(study, name, folder / f"figure_{number}.png")]
    if number == 4:
        shown = (("CAPS", "figure_4.png"), (RECOMMENDED, "figure_4_ours.png"))
        return [terminations(study, variant, folder / file) for variant, file in shown]
    draw = {1: map_and_goals, 3: options_taken, 6: changed_map}[number]
    return [draw(study, folder / f"figure_{number}.png")]


def map_and_goals(_: Study, path: Path) -> Path:
    """Figure 1: the map, the goals of the source tasks and the two targets."""
    return _goals(task("g").map.goals, "g", "Source tasks G1 to G4 and target tasks g and g'", path)


def changed_map(_: Study, path: Path) -> Path:
    """Figure 6: the map with other walls, on which g is to be reached with the sources of the first map."""
    return _goals(
        {"g": task("changed").map.goals["g"]}, "changed", "Target task with other walls than the sources", path
    )


def _goals(goals: dict[str, int], on: str, title: str, path: Path) -> Path:
    figure, axes = new_figure(6.4, 5.8)
    draw_map(axes[0, 0], task(on).map, title)
    colours = dict(zip(SOURCE_TASKS, SOURCE_COLOURS, strict=False))
    draw_goals(axes[0, 0], task(on).map, goals, {**colours, "g'": INK})
    return save(figure, path)


def learning_curves(study: Study, name: str, path: Path) -> Path:
    """Figures 2, 5 and 7: the mean return of all episodes so far, and of the last ones."""
    figure, axes = new_figure(PAGE_WIDTH, 4.4, columns=2)
    for ax, average in zip(axes[0], ("from the start, as in the paper", "over the last 100 episodes"), strict=True):
        for variant in DRAWN:
            if average.startswith("from"):
                curves = study.average_from_start(variant, name)
            else:
                curves = study.moving_average(variant, name)
            episodes = np.arange(study.results.episodes - curves.shape[1], study.results.episodes) + 1
            style = "--" if variant in DASHED else "-"
            _draw_runs(ax, episodes, curves, METHOD_COLOURS[variant], variant, style, optimum(name).upper_bound)
        ax.axhline(optimum(name).value, color=INK, linewidth=1.2, linestyle=":", label="optimum")
        ax.set(xlabel="episode", ylabel="discounted return", ylim=(0, 1.2 * optimum(name).value))
        ax.set_title(f"averaged {average}", fontsize=TEXT_SIZE, color=INK)
        ax.set_xlim(0, study.results.episodes)
        tidy(ax)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=TEXT_SIZE)
    where = "the changed map" if name == "changed" else f"task {name}"
    figure.suptitle(f"Learning {where}: mean and 95% interval over {study.results.n_runs} runs", color=INK)
    return save(figure, path)


def _draw_runs(ax: Any, x: np.ndarray, curves: np.ndarray, colour: str, label: str, style: str, highest: float) -> None:
    """Each run thin, their mean thick, and its 95% interval as far as returns go."""
    x, curves = x[::POINTS_APART], curves[:, ::POINTS_APART]
    mean, half = curves.mean(axis=0), half_width(curves)
    ax.plot(x, curves.T, color=colour, linewidth=0.4, alpha=0.25)
    ax.fill_between(x, (mean - half).clip(0), (mean + half).clip(max=highest), color=colour, alpha=0.15, linewidth=0)
    ax.plot(x, mean, color=colour, linestyle=style, linewidth=1.8, label=label)


def options_taken(study: Study, path: Path) -> Path:
    """Figure 3: the option that CAPS takes in each state of task g."""
    options = study.array("CAPS", "g", "greedy_options")[SHOWN_SEED].astype(int)
    actions = study.array("CAPS", "g", "greedy_actions")[SHOWN_SEED].astype(int)
    on = task("g").map
    figure, axes = new_figure(6.4, 6.4)
    title = f"Options that CAPS takes greedily on task g (seed {SHOWN_SEED})"
    draw_options(axes[0, 0], on, options, actions, OPTION_NAMES, len(SOURCE_TASKS), on.goals["g"], title)
    return save(figure, path)


def terminations(study: Study, variant: str, path: Path) -> Path:
    """Figure 4: β of each source over the map, with its policy's arrows."""
    beta = sigmoid(study.array(variant, "g", "theta")[SHOWN_SEED])
    on = task("g").map
    figure, axes = new_figure(PAGE_WIDTH, 7.8, columns=2, rows=2)
    for index, (ax, name) in enumerate(zip(axes.flat, SOURCE_TASKS, strict=True)):
        image = draw_termination(ax, on, beta[:, index], optimum(name).policy, on.goals["g"], f"source {name}")
    figure.colorbar(image, ax=axes, shrink=0.6, pad=0.015, label="probability of ending, β")
    figure.suptitle(f"{variant}: terminations of the sources after learning task g (seed {SHOWN_SEED})", color=INK)
    return save(figure, path)
