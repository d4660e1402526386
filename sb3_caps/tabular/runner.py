"""Runs a batch of tabular learners on grid tasks, episode after episode. It can be stopped, pickled and continued."""

from collections.abc import Callable, Sequence

import numpy as np

from sb3_caps.envs.grid.batched import BatchedGrid, GridTask
from sb3_caps.envs.grid.dynamics import NOISE
from sb3_caps.tabular.base import GAMMA, Learner, Steps
from sb3_caps.tabular.compiled import compiled, world
from sb3_caps.tabular.streams import Streams

# Of the draws of a step, the first two are the noise of a move and the next three the start of an episode.
_NOISE, _START, _LEARNER = slice(0, 2), slice(2, 5), slice(5, None)
# How many steps a compiled run does before the next run's turn
_CHUNK = 10_000


class Experiment:
    """
    A batch of independent runs.

    With Numba, runs are stepped one after the other in machine code. Without it, they all step together. The results
    are the same, up to the last digit of exponentials.

    :param learner: the learners of all runs
    :param tasks: the task of each run
    :param seeds: the seed of each run
    :param episodes: how many episodes each run has
    :param snapshots: keep the tables of each run when it has finished this many episodes
    :param gamma: the discount factor of the returns that are recorded
    :param noise: the largest deviation of a move in each coordinate
    :param rewards: the reward of each run at the goal, 1 by default; ``returns`` are recorded as shares of it
    :param use_compiled: False steps all runs together even where Numba is installed
    """

    def __init__(
        self,
        learner: Learner,
        tasks: Sequence[GridTask],
        seeds: Sequence[int],
        episodes: int,
        snapshots: Sequence[int] = (),
        gamma: float = GAMMA,
        noise: float = NOISE,
        rewards: Sequence[float] | None = None,
        use_compiled: bool = True,
    ) -> None:
        if not learner.n_runs == len(tasks) == len(seeds):
            raise ValueError(f"{learner.n_runs} learners, {len(tasks)} tasks and {len(seeds)} seeds: give one of each")
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, not {episodes}")
        self.rewards = np.ones(learner.n_runs) if rewards is None else np.array(rewards, dtype=float)
        if self.rewards.shape != (learner.n_runs,) or not (self.rewards > 0).all():
            raise ValueError(f"give a positive reward for each of {learner.n_runs} runs, not {rewards}")
        self.use_compiled = use_compiled
        self.learner = learner
        self.grid = BatchedGrid(tasks, noise)
        self.streams = Streams(seeds, 5 + learner.columns)
        self.runs = np.arange(learner.n_runs)
        #: the discounted return of each episode as a share of the reward, of shape (runs, episodes)
        self.returns = np.zeros((learner.n_runs, episodes))
        self._snapshot_at = np.array(snapshots, dtype=np.intp)
        #: the tables at each snapshot, of shape (snapshots, runs, ...)
        self.snapshots = {
            name: np.zeros((len(snapshots), *table.shape), dtype=table.dtype)
            for name, table in learner.tables().items()
            if len(snapshots)
        }
        self._discounts = gamma ** np.arange(self.grid.horizon)
        draws = self.streams.next()
        self.grid.reset(self.runs, draws[:, _START])
        learner.begin(self.runs, self.grid.cells, draws[:, _LEARNER])

    @property
    def finished(self) -> int:
        """The number of episodes that have been finished in all runs together."""
        return int(self.learner.episodes.sum())

    def run(self, steps: int | None = None) -> bool:
        """
        Go on until all runs have finished.

        :param steps: at most this many steps
        :return: whether all runs have finished
        """
        kernel = compiled(self.learner) if self.use_compiled else None
        done = 0
        while len(self.runs) and done != steps:
            if kernel is None:
                self._step()
                done += 1
            else:
                chunk = _CHUNK if steps is None else min(_CHUNK, steps - done)
                self._run_compiled(kernel, chunk)
                done += chunk
        return not len(self.runs)

    def _run_compiled(self, kernel: Callable[..., int], steps: int) -> None:
        """Each run in turn, with stops where a snapshot is due."""
        stops = sorted({*self._snapshot_at.tolist(), self.returns.shape[1]})
        for agent, run in enumerate(self.runs.tolist()):
            done, reward = 0, float(self.rewards[run])
            own = world(self.grid, self.streams, agent, self._discounts, reward, self.returns[run])
            for stop in stops:
                if done < steps and self.learner.episodes[run] < stop:
                    done += kernel(own, run, self.streams.step + done, steps - done, stop)
                    if self.snapshots and self.learner.episodes[run] == stop:
                        self._take_snapshots(np.array([run]))
        self.streams.skip(steps)
        self._drop_finished()

    def _step(self) -> None:
        draws = self.streams.next()
        own = draws[:, _LEARNER]
        states = self.grid.cells
        actions = self.learner.act(self.runs, states, own)
        cells, reached, truncated = self.grid.step(actions, draws[:, _NOISE])
        self.learner.learn(Steps(self.runs, states, actions, reached * self.rewards[self.runs], cells, reached, own))
        ended = np.flatnonzero(reached | truncated)
        if len(ended):
            self._end_episodes(ended, reached[ended], draws[ended])

    def _end_episodes(self, ended: np.ndarray, reached: np.ndarray, draws: np.ndarray) -> None:
        runs = self.runs[ended]
        returns = np.where(reached, self._discounts[self.grid.steps[ended] - 1], 0.0)
        self.returns[runs, self.learner.episodes[runs]] = returns
        self.learner.end(runs, returns * self.rewards[runs])
        if self.snapshots:
            self._take_snapshots(runs)
        self.grid.reset(ended, draws[:, _START])
        self.learner.begin(runs, self.grid.cells[ended], draws[:, _LEARNER])
        self._drop_finished()

    def _drop_finished(self) -> None:
        over = self.learner.episodes[self.runs] == self.returns.shape[1]
        if over.any():
            keep = np.flatnonzero(~over)
            self.runs = self.runs[keep]
            self.grid.keep(keep)
            self.streams.keep(keep)

    def _take_snapshots(self, runs: np.ndarray) -> None:
        which, row = np.nonzero(self._snapshot_at[:, None] == self.learner.episodes[runs])
        if len(which):
            for name, table in self.learner.tables().items():
                self.snapshots[name][which, runs[row]] = table[runs[row]]
