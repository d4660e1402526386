"""What ``OptionMonitor`` draws for the grid: the option chosen in each cell, and where each source terminates."""

from typing import Any

import numpy as np

from sb3_caps.common.callbacks import Episode
from sb3_caps.studies.grid.drawing import draw_options, draw_termination
from sb3_caps.studies.shared.options import option_table
from sb3_caps.studies.shared.plots import new_figure


def option_maps(model: Any, episode: Episode) -> dict[str, Any]:
    """
    :param model: a CAPS model on a task of ``sb3_caps/Grid-v0``
    :param episode: the evaluation episode, which the maps do not need
    :return: figures of Matplotlib: ``"chosen_options"``, and ``"termination_maps"`` if there are sources
    """
    env = model.get_env()
    grid_map, goal = env.get_attr("map")[0], env.get_attr("goal")[0]
    cells = np.arange(grid_map.n_cells)
    values, terminations, actions = option_table(model, cells)
    options, chosen = model.options, values.argmax(axis=1)

    figure, axes = new_figure(6.4, 6.4)
    draw_options(axes.flat[0], grid_map, chosen, actions[cells, chosen], options.names, options.n_sources, goal)
    figures = {"chosen_options": figure}
    if options.n_sources:
        figure, axes = new_figure(4.2 * options.n_sources, 4.2, columns=options.n_sources)
        for source, ax in enumerate(axes.flat):
            title = f"β of {options.names[source]}"
            image = draw_termination(ax, grid_map, terminations[:, source], actions[:, source], goal, title)
        figure.colorbar(image, ax=list(axes.flat), shrink=0.7)
        figures["termination_maps"] = figure
    return figures
