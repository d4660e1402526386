"""
Draw the figures of docs/monster_kong.md: ``python docs/figures/monster_kong/draw.py``.

Needs the extras `games` and `studies` (Pillow and matplotlib).
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from PIL import Image

from sb3_caps.commands import main as sb3_caps
from sb3_caps.envs.monster_kong import TARGETS
from sb3_caps.envs.monster_kong.drawing import LUMA, draw_level, painter, paste
from sb3_caps.envs.monster_kong.env import MonsterKongEnv
from sb3_caps.envs.monster_kong.level import GOALS
from sb3_caps.envs.monster_kong.observations import WAVES
from sb3_caps.envs.monster_kong.physics import TILE, UNITS
from sb3_caps.envs.monster_kong.planner import UNREACHABLE, plan
from sb3_caps.envs.monster_kong.sprites import POSES, sprites
from sb3_caps.envs.resizing import resize_area

FOLDER = Path(__file__).parent
# A start far from the target on each map.
STARTS = {"a": (30, 24), "b": (2, 19)}
# Where there is room to jump to the right.
JUMPS = {"a": (20, 24), "b": (24, 9)}
TRAIL_STEP = 6


def save(picture: npt.NDArray[np.uint8], name: str, scale: int) -> None:
    """Enlarge a picture without blurring it."""
    enlarged = np.repeat(np.repeat(picture, scale, axis=0), scale, axis=1)
    Image.fromarray(enlarged).save(FOLDER / f"{name}.png", optimize=True)


def jumping_env(setting: str, goal: str, observation: str) -> MonsterKongEnv:
    """A game in the middle of a jump to the right."""
    env = MonsterKongEnv(setting, goal, observation, render_mode="rgb_array")
    env.reset(options={"start": JUMPS[setting]})
    for action in (3, 3, 4, 3, 3, 3):
        env.step(action)
    return env


def draw_observations(setting: str, goal: str) -> None:
    """The two frames of an observation side by side, the older one on the left."""
    env = jumping_env(setting, goal, "pixels")
    frames = env.step(3)[0]
    gap = np.full((84, 4), 255, dtype=np.uint8)
    save(np.concatenate([frames[..., 0], gap, frames[..., 1]], axis=1), f"pixels_{setting}", 5)


def draw_features() -> None:
    """The features of the same moment as bars."""
    values = jumping_env("a", "princess", "features").step(3)[0]
    names = ["x", "y", "velocity", "on bricks", "on ladder"]
    names += [f"{wave} {axis}·{n}" for wave in ("sin", "cos") for axis in "xy" for n in WAVES]
    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    axes.bar(names, values, color=["#3b6ef0"] * 3 + ["#e0a020"] * 2 + ["#9aa7bd"] * 16)
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.set_ylim(-1.05, 1.05)
    axes.tick_params(axis="x", rotation=60)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("value")
    figure.savefig(FOLDER / "features.png", dpi=110)
    plt.close(figure)


def draw_figures() -> None:
    """Every figure large, and below it as the agent sees it."""
    names = [*GOALS, "spike", *POSES]
    figure, axes = plt.subplots(2, len(names), figsize=(13, 3.1), layout="constrained")
    for column, name in enumerate(names):
        canvas = np.full((30, 25, 3), (30, 28, 52), dtype=np.uint8)
        sprite = sprites()[name]
        paste(canvas, sprite, 5, 27 - len(sprite))
        small = resize_area(canvas @ LUMA, round(30 * 84 / 435), round(25 * 84 / 465))
        axes[0, column].imshow(canvas)
        axes[1, column].imshow(small, cmap="gray", vmin=0, vmax=255)
        axes[0, column].set_title(name, fontsize=10)
        for row in range(2):
            axes[row, column].set_axis_off()
    figure.savefig(FOLDER / "figures.png", dpi=110)
    plt.close(figure)


def draw_path(name: str, setting: str, goal: str) -> None:
    """Where an optimal agent passes on its way to the target."""
    env = MonsterKongEnv(setting, goal, "features")
    env.reset(options={"start": STARTS[setting]})
    artist = painter(setting)
    picture = artist.full_background.copy()
    over = False
    while not over:
        if env.steps % TRAIL_STEP == 0:
            shadow = sprites()[POSES[artist.poses[env.state]]]
            paste(picture, shadow, int(env.table.x[env.state]) // UNITS, int(env.table.y[env.state]) // UNITS)
        over = env.step(env.optimal_action())[2]
    save(picture, f"path_{name}", 2)


def draw_steps(name: str, setting: str, goal: str) -> None:
    """The fewest steps to the target from every tile: the planner's answer."""
    solution = plan(setting, goal)
    table, level = solution.table, painter(setting).level
    steps = np.full(level.shape, np.nan)
    known = (solution.steps < UNREACHABLE) & (table.velocity == 0)
    rows, columns = table.y[known] // TILE, table.x[known] // TILE
    order = np.argsort(-solution.steps[known], kind="stable")
    steps[rows[order], columns[order]] = solution.steps[known][order]
    picture = draw_level(level)
    figure, axes = plt.subplots(figsize=(7.6, 6.6), layout="constrained")
    axes.imshow(picture)
    height, width = picture.shape[:2]
    colours = axes.imshow(steps, extent=(0, width, height, 0), cmap="viridis_r", alpha=0.75)
    figure.colorbar(colours, label=f"fewest steps to the {goal}", shrink=0.9)
    axes.set_axis_off()
    figure.savefig(FOLDER / f"steps_{name}.png", dpi=100)
    plt.close(figure)


def main() -> None:
    """Draw everything."""
    for task, (setting, goal) in TARGETS.items():
        name = task.removeprefix("MonsterKong").lower()
        env = MonsterKongEnv(setting, goal, "features", render_mode="rgb_array")
        env.reset(options={"start": STARTS[setting]})
        save(env.picture(), f"map_{setting}", 2)
        draw_observations(setting, goal)
        draw_path(name, setting, goal)
        draw_steps(name, setting, goal)
        start = ",".join(map(str, STARTS[setting]))
        arguments = ["--map", setting, "--goal", goal, "--policy", "optimal", "--start", start, "--no-window"]
        sb3_caps(["play", "monster-kong", *arguments, "--record", str(FOLDER / f"optimal_{name}.gif")])
    draw_features()
    draw_figures()


if __name__ == "__main__":
    main()
