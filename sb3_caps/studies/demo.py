"""The demo: a new task on the grid, learned by CAPS from four source policies, and by SB3's DQN beside it."""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_caps.caps import CAPS
from sb3_caps.envs.grid import PAPER_TASKS, GridEnv, GridMap, plan
from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.settings import algorithm_arguments, settings
from sb3_caps.studies.grid.drawing import draw_options, draw_termination
from sb3_caps.studies.grid_networks.study import SOURCES, TASKS, grid_sources
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.options import option_table, simplest_options
from sb3_caps.studies.shared.plots import INK, METHOD_COLOURS, TEXT_SIZE, TITLE_SIZE, new_figure, save, tidy

ENTRIES = {name: settings(name.lower(), "sb3_caps/Grid-v0@demo") for name in ("DQN", "CAPS")}
GAMMA, N_ENVS, STEPS = (ENTRIES["DQN"][key] for key in ("gamma", "n_envs", "n_timesteps"))
N_POINTS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps demo``.

    :param parser: where to add the arguments of this command
    """
    parser.add_argument("--task", choices=TASKS, default="TargetPrime")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of each algorithm")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for pictures and TensorBoard logs")


class LearningCurve(BaseCallback):
    """
    The exact value of the greedy policy, at some points of the run.

    :param task: evaluates a policy of the cell
    :param total_timesteps: length of the run
    """

    def __init__(self, task: Any, total_timesteps: int) -> None:
        super().__init__()
        self.task = task
        self.points = np.linspace(0, total_timesteps, N_POINTS + 1)[1:]
        self.steps: list[int] = [0]
        self.values: list[float] = []

    def _value(self) -> float:
        actions, _ = self.model.predict(np.arange(self.task.model.map.n_cells), deterministic=True)
        return float(self.task.start @ self.task.policy_values(actions))

    def _on_training_start(self) -> None:
        self.values.append(self._value())

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.points[len(self.steps) - 1]:
            self.steps.append(self.num_timesteps)
            self.values.append(self._value())
            self.logger.record("eval/value", self.values[-1])
        return True


def run(args: argparse.Namespace) -> int:
    """
    Learn with both algorithms, print their curves and draw what CAPS does.

    :param args: what ``add_arguments`` parsed
    :return: the exit code
    """
    check_at_least(N_POINTS * N_ENVS, steps=args.steps)
    # Networks this small are slower on two threads than on one
    th.set_num_threads(1)
    map_name, goal = PAPER_TASKS[args.task]
    print(f"Planning: the optimum of task {goal} on map {map_name}, and policies for {', '.join(SOURCES)} ...")
    task = evaluator(map_name, goal, GAMMA)
    optimum = plan(map_name, goal, GAMMA).value
    sources = grid_sources()

    curves: dict[str, LearningCurve] = {}
    models: dict[str, OffPolicyAlgorithm] = {}
    for name, entry in ENTRIES.items():
        print(f"\n{name}: {args.steps:,} steps")
        env = make_vec_env(GridEnv, N_ENVS, seed=args.seed, env_kwargs={"map": map_name, "goal": goal})
        training = {**algorithm_arguments(entry, args.steps), "seed": args.seed}
        training["tensorboard_log"] = str(args.output / "tensorboard")
        if name == "DQN":
            models[name] = DQN("MlpPolicy", env, **training)
        else:
            models[name] = CAPS("MlpPolicy", env, source_policies=sources, **training)
        curves[name] = LearningCurve(task, args.steps)
        models[name].learn(args.steps, callback=curves[name], progress_bar=True, tb_log_name=name)

    _print_table(curves, optimum)
    caps = models["CAPS"]
    assert isinstance(caps, CAPS)
    caps.save(args.output / "caps_model")
    files = [
        _draw_curves(curves, optimum, goal, args.output / "learning_curves.png"),
        *_draw_maps(caps, GridMap.load(map_name), task.goal, goal, args.output),
        args.output / "caps_model.zip",
    ]
    print("\nWritten:", *(f"  {file}" for file in files), sep="\n")
    # Whether or not the environment of this Python is activated
    print(f"\nLook at the runs:  {sys.executable} -m tensorboard.main --logdir {args.output / 'tensorboard'}")
    return 0


def _print_table(curves: dict[str, LearningCurve], optimum: float) -> None:
    """Values of the greedy policies, as shares of the optimum."""
    print(f"\nDiscounted return of the greedy policy; the optimum is {optimum:.3f}\n")
    print(f"{'steps':>8}" + "".join(f"{name:>18}" for name in curves))
    for row, steps in enumerate(curves["CAPS"].steps):
        values = [curve.values[row] for curve in curves.values()]
        print(f"{steps:>8,}" + "".join(f"{value:>10.3f} ({value / optimum:>4.0%})" for value in values))


def _draw_curves(curves: dict[str, LearningCurve], optimum: float, goal: str, path: Path) -> Path:
    figure, axes = new_figure(6.4, 3.8)
    ax = axes[0, 0]
    for name, curve in curves.items():
        ax.plot(
            curve.steps, curve.values, label=name, color=METHOD_COLOURS[name], linewidth=2, marker="o", markersize=4
        )
    ax.axhline(optimum, color=INK, linestyle="--", linewidth=1, label="exact optimum")
    ax.set(xlabel="environment steps", ylabel="discounted return of the greedy policy", ylim=(0, None))
    ax.set_title(f"Learning task {goal}, with four source policies (CAPS) and without (DQN)", fontsize=TITLE_SIZE)
    ax.legend(frameon=False, loc="lower right", fontsize=TEXT_SIZE)
    tidy(ax)
    return save(figure, path)


def _draw_maps(model: CAPS, grid_map: GridMap, goal: int, goal_name: str, folder: Path) -> list[Path]:
    """What the model does in each cell and a source that does the same, and where it would end each source."""
    _, beta, actions, taken = option_table(model, np.arange(grid_map.n_cells))
    n_sources = model.options.n_sources
    options = simplest_options(taken, actions, n_sources)

    # READMEs show these two side by side
    figure, axes = new_figure(5.4, 5.6)
    title = f"What CAPS does in each cell to reach {goal_name},\nand a source that does the same"
    draw_options(axes[0, 0], grid_map, options, taken, model.options.names, n_sources, goal, title, goal_name)
    files = [save(figure, folder / "options.png")]

    figure, axes = new_figure(5.4, 5.6, columns=2, rows=2)
    for i, ax in enumerate(axes.flat[:n_sources]):
        title = f"source {model.options.names[i]}"
        image = draw_termination(ax, grid_map, beta[:, i], actions[:, i], goal, title, goal_name="")
    figure.suptitle("β: how likely each source is to end in a cell", fontsize=TITLE_SIZE, color=INK)
    figure.colorbar(image, ax=axes, shrink=0.6, location="bottom", label="goes on (0)  –  ends (1)")
    return [*files, save(figure, folder / "terminations.png")]
