"""Pictures of grid maps and of what an agent has learned on them, from plain arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sb3_caps.colours import PRIMITIVE_COLOUR, option_colour
from sb3_caps.envs.grid.maps import GridMap
from sb3_caps.extras import require
from sb3_caps.studies.shared.plots import INK, TEXT_SIZE, TITLE_SIZE

WALL, FLOOR = "#3a4052", "#fbf9f4"
GOAL_COLOUR = "#d62839"
# Up to this β the floor is light
LIGHT = 0.6
# Of each action, as (x, y) on axes whose y grows downwards: up, down, left, right.
ARROWS = np.array([(0.0, -1.0), (0.0, 1.0), (-1.0, 0.0), (1.0, 0.0)])


def draw_map(ax: Any, grid_map: GridMap, title: str = "", shades: np.ndarray | None = None) -> Any:
    """
    Draw walls and floor.

    :param ax: the axes
    :param grid_map: the map
    :param title: the title of the axes
    :param shades: a number from 0 to 1 for each cell, drawn as the colour of the floor, or colours of shape (cells, 4)
    :return: the drawn image of the shades, for a colour bar, or of the map
    """
    colours = require("matplotlib.colors", "studies")
    image = ax.imshow(grid_map.walls, cmap=colours.ListedColormap([FLOOR, WALL]), vmin=0, vmax=1)
    if shades is not None and shades.ndim == 2:
        ax.imshow(np.where(grid_map.walls[..., None], 0.0, shades.reshape(*grid_map.walls.shape, 4)))
    elif shades is not None:
        floor = np.ma.masked_array(np.reshape(shades, grid_map.walls.shape), grid_map.walls)
        image = ax.imshow(floor, cmap="Reds", vmin=0.0, vmax=1.0)
    ax.set_xticks(np.arange(-0.5, grid_map.width), minor=True)
    ax.set_yticks(np.arange(-0.5, grid_map.height), minor=True)
    ax.grid(which="minor", color=INK, linewidth=0.3, alpha=0.18)
    ax.tick_params(which="both", length=0, labelbottom=False, labelleft=False)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(title, fontsize=TITLE_SIZE, color=INK)
    return image


def draw_goals(ax: Any, grid_map: GridMap, goals: Mapping[str, int], colours: Mapping[str, str] | None = None) -> None:
    """
    Mark cells by a coloured label.

    :param ax: the axes
    :param grid_map: the map
    :param goals: the label and the cell of each goal; an empty label is a dot
    :param colours: the colour of each label, that of the goal where none is given
    """
    for label, cell in goals.items():
        row, column = divmod(cell, grid_map.width)
        if not label:
            ax.plot(column, row, "o", color=GOAL_COLOUR, markeredgecolor="white", markersize=6, zorder=4)
            continue
        box = {
            "boxstyle": "circle,pad=0.22",
            "facecolor": (colours or {}).get(label, GOAL_COLOUR),
            "edgecolor": "white",
        }
        ax.text(
            column, row, label, color="white", fontsize=TEXT_SIZE, weight="bold", ha="center", va="center", bbox=box
        )


def draw_arrows(ax: Any, grid_map: GridMap, actions: np.ndarray, colours: Any, goal: int | None = None) -> None:
    """
    Draw an arrow for the action in each free cell.

    :param ax: the axes
    :param grid_map: the map
    :param actions: the action in each cell
    :param colours: one colour, or one for each cell
    :param goal: a cell without an arrow
    """
    cells = grid_map.free_cells[grid_map.free_cells != goal]
    rows, columns = np.divmod(cells, grid_map.width)
    x, y = 0.36 * ARROWS[np.asarray(actions)[cells]].T
    chosen = colours if isinstance(colours, str) else [colours[cell] for cell in cells]
    ax.quiver(
        columns - x,
        rows - y,
        2 * x,
        2 * y,
        color=chosen,
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.0055,
        headwidth=4.2,
        headlength=4.2,
        headaxislength=3.8,
        zorder=3,
    )


def draw_options(
    ax: Any,
    grid_map: GridMap,
    options: np.ndarray,
    actions: np.ndarray,
    names: Sequence[str],
    n_sources: int,
    goal: int,
    title: str = "",
    goal_name: str = "g",
    legend_beside: bool = False,
) -> None:
    """
    Draw an option for each state: the arrow is its action, the colour says which option it is (Figure 3).

    :param ax: the axes
    :param grid_map: the map
    :param options: the index of the option in each cell, sources first
    :param actions: the action of that option in each cell
    :param names: the name of each option
    :param n_sources: how many of the options are source policies; the others are primitive
    :param goal: the goal's cell
    :param title: the title of the axes
    :param goal_name: what to call the goal
    :param legend_beside: whether the legend is to the right, and not below
    """
    to_rgba = require("matplotlib.colors", "studies").to_rgba
    palette = [option_colour(index, n_sources) for index in range(len(names))]
    # Cells in full colour show regions also where the picture is small; primitive options stay in the background
    floor = np.array([to_rgba(palette[option], 0.6 if option < n_sources else 0.3) for option in options])
    floor[goal] = 0.0
    draw_map(ax, grid_map, title, shades=floor)
    draw_arrows(ax, grid_map, actions, INK, goal)
    draw_goals(ax, grid_map, {goal_name: goal})
    cells = grid_map.free_cells[grid_map.free_cells != goal]
    taken = np.bincount(np.asarray(options)[cells], minlength=len(names))
    entries = [(f"{names[index]} ({taken[index]})", to_rgba(palette[index], 0.6)) for index in range(n_sources)]
    if len(names) > n_sources:
        entries.append((f"primitive ({taken[n_sources:].sum()})", to_rgba(PRIMITIVE_COLOUR, 0.3)))
    patches = require("matplotlib.patches", "studies")
    handles = [patches.Patch(color=colour, linewidth=0, label=label) for label, colour in entries]
    ax.legend(
        handles=handles,
        loc="center left" if legend_beside else "upper center",
        bbox_to_anchor=(1.0, 0.5) if legend_beside else (0.5, 0.0),
        ncols=1 if legend_beside else min(len(handles), 5),
        frameon=False,
        fontsize=TEXT_SIZE,
        title="option (cells)" if legend_beside else "option (number of cells)",
        title_fontsize=TEXT_SIZE,
        columnspacing=1.2,
        handlelength=1.2,
    )


def draw_termination(
    ax: Any,
    grid_map: GridMap,
    termination: np.ndarray,
    actions: np.ndarray,
    goal: int,
    title: str = "",
    goal_name: str = "g",
) -> Any:
    """
    Draw how likely an option is to end on arriving in each state, with its policy's arrows (Figure 4).

    :param ax: the axes
    :param grid_map: the map
    :param termination: β of the option in each cell
    :param actions: the option's action in each cell
    :param goal: the goal's cell
    :param title: the title of the axes
    :param goal_name: what to call the goal
    :return: the drawn image, for a colour bar
    """
    image = draw_map(ax, grid_map, title, shades=termination)
    draw_arrows(ax, grid_map, actions, np.where(termination < LIGHT, INK, "white"), goal)
    draw_goals(ax, grid_map, {goal_name: goal})
    return image
