"""What ``OptionMonitor`` draws for the grid: the option chosen in each cell, and where each source terminates."""

import math
from typing import Any

import numpy as np

from sb3_caps.reuse.callbacks import CARD, CARD_DPI, Episode
from sb3_caps.studies.grid.drawing import draw_options, draw_termination
from sb3_caps.studies.shared.options import option_table, simplest_options
from sb3_caps.studies.shared.plots import new_figure


def option_maps(model: Any, episode: Episode) -> dict[str, Any]:
    """
    Draw maps of options and terminations, for ``OptionMonitor``.

    :param model: a CAPS model on a task of ``sb3_caps/Grid-v0``
    :param episode: the evaluation episode, which the maps do not need
    :return: figures of Matplotlib: ``"chosen_options"``, and ``"termination_maps"`` if there are sources
    """
    env = model.get_env()
    grid_map, goal = env.get_attr("map")[0], env.get_attr("goal")[0]
    cells = np.arange(grid_map.n_cells)
    _, terminations, actions, taken = option_table(model, cells)
    options = model.options
    chosen = simplest_options(taken, actions, options.n_sources)

    figure, axes = new_figure(*CARD)
    draw_options(
        axes.flat[0], grid_map, chosen, taken, options.names, options.n_sources, goal, goal_name="", legend_beside=True
    )
    figures = {"chosen_options": figure}
    if options.n_sources:
        columns = math.ceil(math.sqrt(options.n_sources))
        figure, axes = new_figure(*CARD, columns=columns, rows=math.ceil(options.n_sources / columns))
        for source, ax in enumerate(axes.flat):
            if source >= options.n_sources:
                ax.set_visible(False)
                continue
            name, beta = options.names[source], terminations[:, source]
            image = draw_termination(ax, grid_map, beta, actions[:, source], goal, f"β of {name}", goal_name="")
        figure.colorbar(image, ax=list(axes.flat), shrink=0.9)
        figures["termination_maps"] = figure
    for figure in figures.values():
        figure.set_dpi(CARD_DPI)
    return figures
