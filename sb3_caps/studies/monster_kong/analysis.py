"""
What the settings of the Monster Kong study rest on, without any learning.

How far apart β leaves the values of options, and which β can be learned from them, is computed exactly; how much of
the way to the goal options that are drawn at random see is counted.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sb3_caps.envs.monster_kong.env import HORIZON
from sb3_caps.envs.monster_kong.level import GOALS
from sb3_caps.envs.monster_kong.physics import ACTIONS
from sb3_caps.envs.monster_kong.planner import Plan, plan
from sb3_caps.studies.monster_kong.evaluation import ExactEvaluation
from sb3_caps.studies.monster_kong.methods import TASKS
from sb3_caps.studies.monster_kong.sources import source_goals
from sb3_caps.studies.shared.arguments import check_at_least
from sb3_caps.studies.shared.statistics import roc_area
from sb3_caps.studies.shared.tables import markdown

TERMINATIONS = (0.06, 0.12, 0.25, 0.5, 1.0)
NOISES = (0.0, 0.005, 0.01, 0.02)
NOISE_HEADER = ["goal", "β", *(f"{noise:.1%} noise" for noise in NOISES)]
MARGINS = (0.0, 0.01, 0.03)
HORIZONS = (HORIZON, 200, 100, 50)
N_GAMES = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the arguments of ``sb3-caps reproduce monster-kong-analysis``.

    :param parser: of ``sb3-caps reproduce monster-kong-analysis``
    """
    parser.add_argument("--setting", default=TASKS["tuning"][0], help="the map: a, b or a file; that of tuning")
    parser.add_argument("--goal", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of random options")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(100, 104)))


def run(args: argparse.Namespace) -> int:
    """
    Print the tables.

    :param args: what ``add_arguments`` asked for
    :return: the exit code
    """
    check_at_least(N_GAMES, steps=args.steps)
    for lines in (
        noise_table(args.setting, args.goal),
        termination_table(args.setting, args.goal),
        coverage_table(args.setting, args.goal, args.steps, args.seeds),
    ):
        for line in lines:
            print(line, flush=True)
        print()
    return 0


def option_actions(setting: str | Path, goal: str) -> np.ndarray:
    """
    Find the actions of all options in all states.

    :param setting: the map
    :param goal: of the target task
    :return: for each state, the action of each source (shortest paths to the other objects), then each primitive's
    """
    sources = [plan(setting, other).actions for other in source_goals(setting, goal)]
    primitives = np.broadcast_to(np.arange(len(ACTIONS)), (len(sources[0]), len(ACTIONS)))
    return np.column_stack([*sources, primitives])


def exact_option_values(setting: str | Path, goal: str, beta: float, gamma: float = 0.99) -> np.ndarray:
    """
    The fixed point of Algorithm 2 for a β that is the same everywhere, by value iteration.

    :param setting: the map
    :param goal: of the target task
    :param beta: the probability that an option ends
    :param gamma: the discount factor
    :return: Q_O(s, o), of shape (states, options)
    """
    table = plan(setting, goal).table
    reached = table.reached(goal)
    ended = reached | table.spiked
    actions = option_actions(setting, goal)
    successors = np.take_along_axis(table.successors, actions, axis=1)
    rewards, discounts = reached[successors].astype(np.float32), np.float32(gamma) * ~ended[successors]
    options = np.arange(actions.shape[1])
    values = np.zeros(actions.shape, dtype=np.float32)
    change = np.inf
    while change > 1e-6:
        going_on, best = values[successors, options], values.max(axis=1)[successors]
        after = rewards + discounts * ((1 - beta) * going_on + beta * best)
        change, values = float(np.abs(after - values).max()), after
    return values


def noise_table(setting: str | Path, goals: list[str], seed: int = 0) -> Iterator[str]:
    """
    How good it is to act by exact option values, and by the same with some noise.

    :param setting: the map
    :param goals: of the target tasks
    :param seed: of the noise
    :return: the lines of a table: for each margin of interruption, shares of the optimum
    """
    yield f"Interrupting execution of exact option values, margins of {', '.join(f'{m:.0%}' for m in MARGINS)}:"
    rows = []
    for goal in goals:
        evaluate, actions = ExactEvaluation(setting, goal), option_actions(setting, goal)
        for beta in TERMINATIONS:
            exact = exact_option_values(setting, goal, beta)
            noise = np.random.default_rng(seed).standard_normal(exact.shape)
            cells = []
            for size in NOISES:
                values = exact * (1 + size * noise)
                best = values.max(axis=1, keepdims=True)
                outcomes = [
                    evaluate.follow(values.argmax(axis=1), values < best * (1 - margin), actions) for margin in MARGINS
                ]
                cells.append(", ".join(f"{outcome.returns.mean() / evaluate.optimum:.0%}" for outcome in outcomes))
            rows.append([goal, f"{beta}", *cells])
    yield from markdown(NOISE_HEADER, rows).splitlines()


def termination_table(setting: str | Path, goals: list[str], seed: int = 0) -> Iterator[str]:
    """
    Compute what β can learn at best.

    That is how well option values, exact and with some noise, tell whether the action of a source is the best one.

    :param setting: the map
    :param goals: of the target tasks
    :param seed: of the noise
    :return: the lines of a table: the area under the ROC curve, by the best option that takes each action, as CAPS
        learns β
    """
    yield "Is the action of a source the best one? Area under the ROC curve by option values:"
    rows = []
    for goal in goals:
        solution, actions = plan(setting, goal), option_actions(setting, goal)
        sources = actions[:, : -len(ACTIONS)]
        for beta in TERMINATIONS:
            exact, areas = exact_option_values(setting, goal, beta), []
            noise = np.random.default_rng(seed).standard_normal(exact.shape)
            for size in NOISES:
                lost = lost_by_sources(exact * (1 + size * noise), actions, sources)
                areas.append(f"{area_of_wrong(lost, sources, solution):.2f}")
            rows.append([goal, f"{beta}", *areas])
    yield from markdown(NOISE_HEADER, rows).splitlines()


def area_of_wrong(scores: np.ndarray, sources: np.ndarray, solution: Plan) -> float:
    """
    Measure how well scores tell where sources are wrong.

    :param scores: of each source in each state, high where its action should not be the best one
    :param sources: its action
    :param solution: which knows
    :return: the area under the ROC curve, over all states from which the goal can be reached
    """
    reachable = solution.optimal.any(axis=1) & (solution.steps > 0)
    wrong, found = ~np.take_along_axis(solution.optimal, sources, axis=1)[reachable], scores[reachable]
    return roc_area(found[wrong], found[~wrong])


def lost_by_sources(values: np.ndarray, actions: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """
    Compute what is lost by following sources.

    :param values: Q_O(s, o), of shape (states, options)
    :param actions: the action of each option, of the same shape; every action is that of one of them
    :param sources: the action of each source, of shape (states, sources)
    :return: by how much that is worth less than the best one, an action being worth what the best option is worth that
        takes it
    """
    worth = np.full((len(values), actions.max() + 1), -np.inf)
    np.maximum.at(worth, (np.arange(len(values))[:, None], actions), values)
    return worth.max(axis=1, keepdims=True) - np.take_along_axis(worth, sources, axis=1)


def coverage_table(setting: str | Path, goals: list[str], steps: int, seeds: list[int]) -> Iterator[str]:
    """
    What could be learned from what random options see.

    :param setting: the map
    :param goals: of the target tasks
    :param steps: environment steps
    :param seeds: of the draws
    :return: the lines of a table: mean share of the optimum that the transitions seen allow, and the lowest
    """
    yield f"The share of the optimum that {steps:,} steps of random options, β = 0.12, allow (lowest of {len(seeds)}):"
    rows = []
    for horizon in HORIZONS:
        shares = [[coverage(setting, goal, horizon, steps, seed) for seed in seeds] for goal in goals]
        rows.append([f"{horizon}", *(f"{np.mean(found):.0%} ({min(found):.0%})" for found in shares)])
    yield from markdown(["horizon", *goals], rows).splitlines()


def coverage(setting: str | Path, goal: str, horizon: int, steps: int, seed: int, beta: float = 0.12) -> float:
    """
    Draw options at random, then plan with the transitions that were seen.

    :param setting: the map
    :param goal: of the target task
    :param horizon: after how many steps an episode is truncated
    :param steps: environment steps
    :param seed: of the draws
    :param beta: the probability that an option ends
    :return: the share of the optimum that they allow
    """
    solution, actions = plan(setting, goal), option_actions(setting, goal)
    table, generator = solution.table, np.random.default_rng(seed)
    reached = table.reached(goal)
    ended = reached | table.spiked
    seen = np.zeros(table.successors.shape, dtype=bool)
    states = np.zeros(N_GAMES, dtype=np.int64)
    options, ages, over = np.zeros(N_GAMES, dtype=np.int64), np.zeros(N_GAMES, dtype=np.int64), np.ones(N_GAMES, bool)
    for _ in range(steps // N_GAMES):
        states = np.where(over, generator.choice(solution.starts, N_GAMES), states)
        ages = np.where(over, 0, ages) + 1
        drawn = generator.integers(actions.shape[1], size=N_GAMES)
        options = np.where(over | (generator.random(N_GAMES) < beta), drawn, options)
        chosen = actions[states, options]
        seen[states, chosen] = True
        states = table.successors[states, chosen].astype(np.int64)
        over = ended[states] | (ages >= horizon)

    rewards = (seen & reached[table.successors]).astype(np.float64)
    discounts = 0.99 * (seen & ~ended[table.successors])
    values, change = np.zeros(len(table)), np.inf
    while change > 1e-6:
        after = (rewards + discounts * values[table.successors]).max(axis=1)
        change, values = float(np.abs(after - values).max()), after
    return float(values[solution.starts].mean() / solution.optimum())
