"""Runs a batch of tabular learners on grid tasks, episode after episode; can be stopped, pickled and gone on with."""

from collections.abc import Callable, Sequence

import numpy as np

from sb3_caps.envs.grid.batched import BatchedGrid, GridTask
from sb3_caps.envs.grid.dynamics import NOISE
from sb3_caps.tabular.base import GAMMA, Learner
from sb3_caps.tabular.streams import Streams

# Of the draws of a step, the first two are the noise of a move and the next three the start of an episode.
_NOISE, _START, _LEARNER = slice(0, 2), slice(2, 5), slice(5, None)


class Experiment:
    """
    Independent runs that step together, each until it has finished its episodes.

    :param learner: the learners of all runs
    :param tasks: the task of each run
    :param seeds: the seed of each run
    :param episodes: how many episodes each run has
    :param snapshots: keep the tables of each run when it has finished this many episodes
    :param gamma: the discount factor of the returns that are recorded
    :param noise: the largest deviation of a move in each coordinate
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
    ) -> None:
        if not learner.n_runs == len(tasks) == len(seeds):
            raise ValueError(f"{learner.n_runs} learners, {len(tasks)} tasks and {len(seeds)} seeds: give one of each")
        if episodes < 1:
            raise ValueError(f"episodes must be at least 1, not {episodes}")
        self.learner = learner
        self.grid = BatchedGrid(tasks, noise)
        self.streams = Streams(seeds, 5 + learner.columns)
        self.runs = np.arange(learner.n_runs)
        #: the discounted return of each episode, of shape (runs, episodes)
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

    def run(self, steps: int | None = None, progress: Callable[[int], None] | None = None) -> bool:
        """
        Go on until all runs have finished.

        :param steps: at most this many steps
        :param progress: is called now and then with ``finished``
        :return: whether all runs have finished
        """
        done = 0
        while len(self.runs) and done != steps:
            self._step()
            done += 1
            if progress is not None and done % 1000 == 0:
                progress(self.finished)
        return not len(self.runs)

    def _step(self) -> None:
        draws = self.streams.next()
        own = draws[:, _LEARNER]
        states = self.grid.cells
        actions = self.learner.act(self.runs, states, own)
        cells, reached, truncated = self.grid.step(actions, draws[:, _NOISE])
        self.learner.learn(self.runs, states, actions, reached.astype(float), cells, reached, own)
        ended = np.flatnonzero(reached | truncated)
        if len(ended):
            self._end_episodes(ended, reached[ended], draws[ended])

    def _end_episodes(self, ended: np.ndarray, reached: np.ndarray, draws: np.ndarray) -> None:
        runs = self.runs[ended]
        returns = np.where(reached, self._discounts[self.grid.steps[ended] - 1], 0.0)
        self.returns[runs, self.learner.episodes[runs]] = returns
        self.learner.end(runs, returns)
        if self.snapshots:
            self._take_snapshots(runs)
        self.grid.reset(ended, draws[:, _START])
        self.learner.begin(runs, self.grid.cells[ended], draws[:, _LEARNER])
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
