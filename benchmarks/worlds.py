"""
How fast the worlds step: ``python -m benchmarks.worlds``.

Random actions on one core, each figure the best of several rounds (other work on the machine only ever slows one down).
The real PLE is measured beside Monster Kong where it is installed.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import sb3_caps.envs  # noqa: F401  registers the environments
from sb3_caps.envs.monster_kong import TASKS
from sb3_caps.envs.monster_kong.env import HORIZON
from sb3_caps.envs.monster_kong.physics import ACTIONS
from sb3_caps.envs.monster_kong.planner import Plan, plan
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.envs.ple import PLEEnv, preprocess
from sb3_caps.studies.shared.tables import markdown

# What PLE's own Monster Kong gives with its grayscale screen, where it is not installed to be measured.
PLE_GRAY_STEPS = 140.0


class Measurement(NamedTuple):
    """
    :param name: what was measured
    :param rate: steps of one game in a second, summed over the games of a batch
    """

    name: str
    rate: float


def best_rate(run: Callable[[], int], rounds: int) -> float:
    """
    :param run: does some steps and returns how many
    :param rounds: how often to run it
    :return: the highest number of steps in a second
    """
    rates = []
    for _ in range(rounds):
        begin = time.perf_counter()
        steps = run()
        rates.append(steps / (time.perf_counter() - begin))
    return max(rates)


def single_rate(env: gym.Env[Any, Any], steps: int, rounds: int) -> float:
    """
    :param env: an environment with discrete actions
    :param steps: the steps of one round
    :param rounds: the number of rounds
    :return: its steps in a second
    """
    assert isinstance(env.action_space, gym.spaces.Discrete)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=steps)
    env.reset(seed=0)

    def run() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return steps

    return best_rate(run, rounds)


def batched_rate(n_envs: int, observation: str, steps: int, rounds: int) -> float:
    """
    :param n_envs: the number of games
    :param observation: ``"pixels"`` or ``"features"``
    :param steps: the steps of the batch in one round
    :param rounds: the number of rounds
    :return: steps of single games in a second
    """
    env = MonsterKongVecEnv(n_envs, observation=observation)
    env.seed(0)
    env.reset()
    actions = np.random.default_rng(0).integers(6, size=(steps, n_envs))

    def run() -> int:
        for row in actions:
            env.step(row)
        return actions.size

    return best_rate(run, rounds)


def ple_rate(steps: int, rounds: int) -> float:
    """PLE's Monster Kong through its own interface, with its own grayscale screen."""
    game = PLEEnv("MonsterKong").ple
    game.reset_game()
    keys = game.getActionSet()
    actions = np.random.default_rng(0).integers(len(keys), size=steps)

    def run() -> int:
        for action in actions:
            if game.game_over():
                game.reset_game()
            game.act(keys[action])
            game.getScreenGrayscale()
        return steps

    return best_rate(run, rounds)


def measure(n_envs: int = 256, scale: float = 1.0, rounds: int = 5) -> list[Measurement]:
    """
    :param n_envs: the number of games of a batch
    :param scale: multiplies the number of steps
    :param rounds: the number of rounds
    :return: all measurements
    """
    single = int(20_000 * scale)
    results = []
    if importlib.util.find_spec("ple") is not None:
        frames = int(300 * scale)
        results.append(Measurement("PLE's Monster Kong, grayscale screen", ple_rate(frames, rounds)))
        adapted = preprocess(PLEEnv("MonsterKong", "gray"), crop=(15, 15, 15, 15), size=(84, 84), stack=2)
        results.append(Measurement("the same through PLEEnv, 84x84x2", single_rate(adapted, frames, rounds)))
    else:
        results.append(Measurement("PLE's Monster Kong, grayscale screen (not installed)", PLE_GRAY_STEPS))
    for observation in ("pixels", "features"):
        env = gym.make("sb3_caps/MonsterKongG1-v0", observation=observation)
        results.append(Measurement(f"one game, {observation}", single_rate(env, single, rounds)))
        rate = batched_rate(n_envs, observation, int(400 * scale), rounds)
        results.append(Measurement(f"{n_envs} games, {observation}", rate))
    return results


def table(results: list[Measurement]) -> str:
    """
    :param results: measurements, the first of which is what the others are compared with
    :return: a table in Markdown
    """
    rows = [[each.name, f"{each.rate:,.0f}", f"{each.rate / results[0].rate:,.1f}"] for each in results]
    return markdown(["world", "steps a second", "times PLE"], rows)


def task_table(episodes: int = 20_000) -> str:
    """
    :param episodes: of the random policy, for each task
    :return: what the optimal and the random policy reach in each Monster Kong task, in Markdown
    """
    lines = [
        "| id | map | goal | optimum (γ = 0.99) | mean steps | most steps | random policy |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, (setting, goal) in TASKS.items():
        solution = plan(setting, goal)
        fewest = solution.steps[solution.starts]
        lines.append(
            f"| `sb3_caps/{name}-v0` | {setting} | {goal} | {solution.optimum():.3f} | {fewest.mean():.0f} "
            f"| {fewest.max()} | {100 * random_success(solution, episodes):.1f}% |"
        )
    return "\n".join(lines)


def random_success(solution: Plan, episodes: int) -> float:
    """
    :param solution: a task
    :param episodes: how many to play
    :return: the share of them in which uniformly random actions reach the goal
    """
    table, generator = solution.table, np.random.default_rng(0)
    reached = table.reached(solution.goal)
    states = generator.choice(solution.starts, episodes)
    running, found = np.ones(episodes, dtype=bool), np.zeros(episodes, dtype=bool)
    for _ in range(HORIZON):
        states = table.successors[states, generator.integers(len(ACTIONS), size=episodes)]
        found |= running & reached[states]
        running &= ~(found | table.spiked[states])
    return float(found.mean())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-envs", type=int, default=256, help="games of a batch (default: 256)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of steps (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default: 5)")
    parser.add_argument("--tasks", action="store_true", help="tell how hard the tasks of Monster Kong are instead")
    args = parser.parse_args()
    print(task_table() if args.tasks else table(measure(args.n_envs, args.scale, args.rounds)))


if __name__ == "__main__":
    main()
