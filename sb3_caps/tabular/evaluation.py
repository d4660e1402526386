"""What learned tables are worth when exploration stops."""

import numpy as np

from sb3_caps.envs.grid.batched import BatchedGrid, GridTask
from sb3_caps.envs.grid.dynamics import NOISE
from sb3_caps.reuse.execution import OptionExecution
from sb3_caps.tabular.base import GAMMA, Greedy


def call_and_return(
    greedy: Greedy,
    tasks: list[GridTask],
    episodes: int = 1000,
    seed: int = 0,
    gamma: float = GAMMA,
    noise: float = NOISE,
) -> np.ndarray:
    """
    Evaluate each run's greedy options, executed with their terminations, in simulated episodes.

    Runs share their random numbers.

    :param greedy: what a learner does when it stops exploring
    :param tasks: the task of each run
    :param episodes: how many episodes to simulate for each run
    :param seed: of the simulation
    :param gamma: the discount factor
    :param noise: the largest deviation of a move in each coordinate
    :return: the average discounted return of each run
    """
    random = np.random.default_rng(seed)
    n_runs = len(tasks)
    grid = BatchedGrid([task for task in tasks for _ in range(episodes)], noise)
    agents = np.arange(n_runs * episodes)
    runs, start = agents // episodes, np.tile(random.random((episodes, 3)), (n_runs, 1))
    grid.reset(agents, start)
    returns = np.zeros(len(agents))
    option = greedy.options[runs, grid.cells]
    for step in range(grid.horizon):
        draws = np.tile(random.random((episodes, 3)), (n_runs, 1))[agents]
        cells, reached, _ = grid.step(greedy.actions[runs, grid.cells, option], draws[:, :2])
        returns[agents[reached]] = gamma**step
        ends = draws[:, 2, None] < greedy.termination[runs, cells]
        option = OptionExecution.next_options(option, False, ends, greedy.options[runs, cells])
        going_on = np.flatnonzero(~reached)
        grid.keep(going_on)
        agents, runs, option = agents[going_on], runs[going_on], option[going_on]
    return returns.reshape(n_runs, episodes).mean(axis=1)
