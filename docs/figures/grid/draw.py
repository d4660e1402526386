"""Draws the pictures of docs/grid.md: ``python docs/figures/grid/draw.py``."""

from pathlib import Path
from typing import Any

import matplotlib.image

from sb3_caps.envs.grid import PAPER_TASKS, GridEnv, GridMap, optimal_policy, plan
from sb3_caps.studies.grid.drawing import draw_arrows, draw_goals, draw_map
from sb3_caps.studies.shared.plots import INK, new_figure, save

FOLDER = Path(__file__).parent
STARTS = {"rooms": (17.5, 1.5), "rooms_changed": (2.5, 21.5)}


def draw_episode(map_name: str, start: tuple[float, float]) -> None:
    """
    Draw an optimal episode to g.

    :param map_name: the map
    :param start: where the agent starts
    """
    env: Any = GridEnv(map_name, "g", render_mode="rgb_array")
    policy: Any = optimal_policy(map_name, "g")
    observation, _ = env.reset(seed=1, options={"position": start})
    terminated = False
    while not terminated:
        observation, _, terminated, _, _ = env.step(policy(observation))
    matplotlib.image.imsave(FOLDER / f"render_{map_name}.png", env.render())


def draw_plans() -> None:
    """Draw the planner's solutions of the paper's target tasks."""
    figure, axes = new_figure(15, 4.8, columns=3)
    for ax, name in zip(axes[0], ("Target", "TargetPrime", "Changed"), strict=True):
        map_name, goal = PAPER_TASKS[name]
        grid_map, solution = GridMap.load(map_name), plan(map_name, goal)
        image = draw_map(ax, grid_map, f"Grid{name}-v0: optimum {solution.value:.3f}", shades=solution.values)
        draw_arrows(ax, grid_map, solution.policy, INK, grid_map.goals[goal])
        draw_goals(ax, grid_map, {goal: grid_map.goals[goal]})
    figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01, label="expected discounted return")
    save(figure, FOLDER / "plans.png")


if __name__ == "__main__":
    for name, start in STARTS.items():
        draw_episode(name, start)
    draw_plans()
