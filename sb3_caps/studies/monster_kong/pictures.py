"""What CAPS does on a Monster Kong map: a trajectory by its options, their timeline, and where sources are worth it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sb3_caps.caps import CAPS
from sb3_caps.colours import option_colour
from sb3_caps.envs.monster_kong.drawing import painter
from sb3_caps.envs.monster_kong.observations import observer
from sb3_caps.envs.monster_kong.physics import ACTIONS, TILE, TILE_PIXELS, UNITS
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.reuse.action_names import option_labels
from sb3_caps.studies.monster_kong.methods import TASKS
from sb3_caps.studies.shared.options import option_table
from sb3_caps.studies.shared.plots import PAGE_WIDTH, TEXT_SIZE, TITLE_SIZE, new_figure, save
from sb3_caps.studies.shared.runs import Run

# Pixels that an arrow of the trajectory is long at least: one for each step could not be seen
ARROW_PIXELS = 12
# The share of a value at which the colours of the map end
MOST_LOST = 0.2


class Trajectory(NamedTuple):
    """
    One episode.

    :param states: in which each action was taken, then the last one
    :param options: the active option in each step
    """

    states: np.ndarray
    options: np.ndarray


def draw_pictures(run: Run, folder: Path, name: str) -> Iterator[str]:
    """
    Draw what a run of CAPS has learned.

    :param run: a finished run of CAPS
    :param folder: where the pictures go
    :param name: part of their names
    :return: the names of the files
    """
    setting, goal = TASKS[run.config["task"]]
    model = CAPS.load(run.folder / "model.zip", device="cpu")
    trajectory = play(model, setting, goal, run.config["observation"])
    yield str(save(_draw_trajectory(model, trajectory, setting), folder / f"figure11_{name}.png"))
    yield str(save(_draw_timeline(model, trajectory), folder / f"timeline_{name}.png"))
    if model.options.n_sources and run.config["observation"] == "features":
        yield str(save(_draw_going_on(model, setting), folder / f"going_on_{name}.png"))


def play(model: CAPS, setting: str, goal: str, observation: str) -> Trajectory:
    """
    Play the longest way: from the start that is farthest from the goal.

    :param model: what to play with
    :param setting: the map
    :param goal: the object to reach
    :param observation: what the model observes
    :return: the episode
    """
    solution = plan(setting, goal)
    table = solution.table
    starts = solution.starts[table.x[solution.starts] % TILE == 0]
    start = int(starts[solution.steps[starts].argmax()])
    env = MonsterKongVecEnv(1, setting, goal, observation)
    env.set_options({"start": (int(table.x[start]) // TILE, int(table.y[start]) // TILE)})
    observations: Any = env.reset()
    state, dones = None, np.ones(1, dtype=bool)
    states, options = [int(env.states[0])], []
    while True:
        actions, state = model.predict(observations, state=state, episode_start=dones, deterministic=True)
        options.append(int(state[0][0]))
        # The batch starts the next episode at once: the last state of this one has to be worked out
        states.append(int(table.successors[states[-1], actions[0]]))
        observations, _, dones, _ = env.step(actions)
        if dones[0]:
            return Trajectory(np.array(states), np.array(options))


def colour_of(model: CAPS, option: int) -> str:
    """
    Choose the colour of an option.

    :param model: whose options
    :param option: one of them
    :return: its colour: one for each source, the same for all primitive options
    """
    return option_colour(option, model.options.n_sources)


def _draw_trajectory(model: CAPS, trajectory: Trajectory, setting: str) -> Any:
    """Figure 11: arrows along the way, coloured by the active option."""
    table = plan(setting, next(iter(painter(setting).level.objects))).table
    places = np.stack([table.x, table.y], axis=1)[trajectory.states] / UNITS + TILE_PIXELS / 2
    figure, axes = new_figure(7, 6.8)
    ax = axes[0, 0]
    ax.imshow(painter(setting).full(int(trajectory.states[0])))
    first = 0
    for step in range(1, len(places)):
        option = trajectory.options[first]
        changes = step < len(trajectory.options) and trajectory.options[step] != option
        if changes or step == len(places) - 1 or np.abs(places[step] - places[first]).sum() >= ARROW_PIXELS:
            arrow = {
                "arrowstyle": "-|>",
                "color": colour_of(model, option),
                "linewidth": 1.8,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            ax.annotate("", places[step], places[first], arrowprops=arrow)
            first = step
    _legend(ax, model, sorted(set(trajectory.options.tolist())))
    ax.set_axis_off()
    return figure


def _draw_timeline(model: CAPS, trajectory: Trajectory) -> Any:
    """Which option was active when: one row for each option."""
    figure, axes = new_figure(PAGE_WIDTH, 0.28 * len(model.options) + 1)
    ax = axes[0, 0]
    for option in range(len(model.options)):
        active = np.flatnonzero(trajectory.options == option)
        ax.broken_barh([(step, 1) for step in active], (option - 0.4, 0.8), color=colour_of(model, option))
    ax.set_yticks(
        range(len(model.options)),
        option_labels(model.options.names, model.options.n_sources, ACTIONS),
        fontsize=TEXT_SIZE,
    )
    ax.set_xlim(0, len(trajectory.options))
    ax.invert_yaxis()
    ax.set_xlabel("step of the episode")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_going_on(model: CAPS, setting: str) -> Any:
    """
    What going on with each source costs wherever bricks or a ladder carry the agent, as a share of the best value.

    Execution interrupts by these, and β learns from them, but so slowly that β itself hardly tells places apart.
    """
    artist = painter(setting)
    carried = np.flatnonzero(artist.table.on_bricks | artist.table.on_ladder)
    values = option_table(model, observer(setting, "features").many(carried, carried)).values
    cost = lost_shares(values)[:, : model.options.n_sources]
    figure, axes = new_figure(PAGE_WIDTH, PAGE_WIDTH / model.options.n_sources + 0.8, columns=model.options.n_sources)
    x, y = (array[carried] / UNITS + TILE_PIXELS / 2 for array in (artist.table.x, artist.table.y))
    for option, ax in enumerate(axes[0]):
        ax.imshow(artist.full_background, alpha=0.35)
        drawn = ax.scatter(x, y, c=cost[:, option], cmap="viridis", vmin=0, vmax=MOST_LOST, s=6, linewidths=0)
        ax.set_title(f"going on to the {model.options.names[option]}", fontsize=TITLE_SIZE)
        ax.set_axis_off()
    label = "share of the best option's value that is lost"
    figure.colorbar(drawn, ax=axes[0].tolist(), location="bottom", shrink=0.5, extend="max", label=label)
    return figure


def lost_shares(values: np.ndarray) -> np.ndarray:
    """
    Compute how much less options are worth than the best one.

    :param values: Q_O, of shape (states, options)
    :return: how much less each option is worth than the best one, as a share of that; 0 where nothing is worth anything
    """
    best = values.max(axis=1, keepdims=True)
    return np.where(best > 0, (best - values) / np.where(best > 0, best, 1.0), 0.0)


def _legend(ax: Any, model: CAPS, options: list[int]) -> None:
    labels: dict[str, str] = {}
    for option in options:
        source = option < model.options.n_sources
        labels.setdefault(model.options.names[option] if source else "primitive options", colour_of(model, option))
    handles = [ax.plot([], [], color=colour, linewidth=3, label=label)[0] for label, colour in labels.items()]
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, fontsize=TEXT_SIZE, frameon=False
    )
