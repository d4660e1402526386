"""What TensorBoard shows of a run, beside the scalars that the algorithms log."""

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Figure, TensorBoardOutputFormat
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, sync_envs_normalization

from sb3_caps.colours import option_colour
from sb3_caps.extras import require
from sb3_caps.reuse.action_names import action_names, option_labels
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources import Observations

# A card of TensorBoard is some 310 by 240 pixels: at this size in inches letters can be read there, and more dots keep
# them sharp when a card is made large.
CARD, CARD_DPI = (4.2, 3.2), 200
# β is drawn on an axis from 0 to 1, in so many parts
TERMINATION_BINS = 25
# Arguments of an algorithm that say nothing about what it learns.
NOT_HYPERPARAMETERS = ("policy", "env", "verbose", "device", "tensorboard_log", "stats_window_size")


class Episode(NamedTuple):
    """
    An evaluation episode, one row for each step.

    :param observations: the observation acted on, as the learner sees it
    :param actions: the action taken
    :param options: the active option
    :param values: Q_O of every option in that state, of shape (steps, options)
    :param terminations: β of every option in that state, of the same shape
    :param rewards: the reward for the action
    :param infos: what the environment told besides
    """

    observations: list[Observations]
    actions: np.ndarray
    options: np.ndarray
    values: np.ndarray
    terminations: np.ndarray
    rewards: np.ndarray
    infos: list[dict[str, Any]]


# From a CAPS model and an evaluation episode to figures of Matplotlib, each under a name for its tag.
DrawFunction: TypeAlias = Callable[[Any, Episode], Mapping[str, Any]]


class HyperparameterLog(BaseCallback):
    """
    Writes the hyperparameters of a run to TensorBoard's HParams tab, which shows those that differ between runs first.
    It works with any algorithm of SB3, and does nothing without TensorBoard.

    :param verbose: Verbosity level: 0 for no output, 1 for info messages
    """

    def _on_training_start(self) -> None:
        if self._writer is not None:
            # Without an "experiment" that lists the columns, TensorBoard makes them of all runs, and knows what differs
            _, *session = require("torch.utils.tensorboard.summary", "tensorboard").hparams(
                hyperparameters(self.model), {}
            )
            for summary in session:
                self._writer.writer._get_file_writer().add_summary(summary)
            self._writer.writer.flush()

    def _on_step(self) -> bool:
        return True

    @property
    def _writer(self) -> TensorBoardOutputFormat | None:
        formats = (form for form in self.logger.output_formats if isinstance(form, TensorBoardOutputFormat))
        return next(formats, None)

    def _write(self, values: dict[str, Any]) -> None:
        """Straight to TensorBoard: the table on the screen has no place for figures."""
        writer = self._writer
        if writer is not None:
            writer.write(values, dict.fromkeys(values, ()), self.num_timesteps)


class OptionMonitor(HyperparameterLog):
    """
    Shows in TensorBoard what CAPS does with its options:

    - histograms of each option's termination over the states that training has come through lately
      (``per_option/termination_histogram/<name>``)
    - the timeline of active options of an evaluation episode (``options/timeline``)
    - whatever ``draw`` draws (``options/<name>``)
    - hyperparameters, in the HParams tab

    It draws nothing at random, so a run is the same with and without it, and does nothing without TensorBoard.

    :param eval_env: One environment for the evaluation episode; None for histograms only
    :param every: Steps of all environments between two looks
    :param n_states: Number of states for the histograms
    :param draw: A function for figures of your own: it takes the model and the evaluation ``Episode`` and returns
        figures by name
    :param verbose: Verbosity level: 0 for no output, 1 for info messages
    """

    def __init__(
        self,
        eval_env: GymEnv | None = None,
        every: int = 10_000,
        n_states: int = 256,
        draw: DrawFunction | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if every < 1 or n_states < 1:
            raise ValueError(f"every and n_states must be at least 1, not {every} and {n_states}.")
        if eval_env is not None and not isinstance(eval_env, VecEnv):
            eval_env = DummyVecEnv([lambda: eval_env])  # type: ignore[list-item, return-value]
        if eval_env is not None and eval_env.num_envs != 1:
            raise ValueError(f"OptionMonitor follows one evaluation environment, not {eval_env.num_envs}.")
        self.eval_env = eval_env
        self.every = every
        self.n_states = n_states
        self.draw = draw
        self._last_look = 0

    def _init_callback(self) -> None:
        if not hasattr(self.model.policy, "values_and_terminations"):
            raise ValueError(f"OptionMonitor is for CAPS, not {type(self.model).__name__}: see HyperparameterLog.")
        self._states: deque[Observations] = deque(maxlen=max(1, self.n_states // self.training_env.num_envs))
        self._last_look = self.num_timesteps

    def _on_step(self) -> bool:
        if self._writer is not None:
            self._states.append(self.locals["new_obs"])
            if self.num_timesteps >= self._last_look + self.every:
                self._look()
        return True

    def _on_training_end(self) -> None:
        if self._writer is not None and self.num_timesteps > self._last_look:
            self._look()

    def _terminations(self, observations: Observations) -> np.ndarray:
        return self.model.policy.values_and_terminations(observations)[1]  # type: ignore[operator]

    def _look(self) -> None:
        self._last_look = self.num_timesteps
        options: OptionSet = self.model.options  # type: ignore[attr-defined]
        labels = option_labels(options.names, options.n_sources, action_names(self.training_env))
        terminations = np.concatenate([self._terminations(states) for states in self._states])
        for i, label in enumerate(labels):
            self._write_histogram(f"per_option/termination_histogram/{label}", terminations[:, i])
        figures: dict[str, Any] = {}
        if self.eval_env is not None:
            if isinstance(self.eval_env, VecNormalize):
                sync_envs_normalization(self.training_env, self.eval_env)
            episode = run_episode(self.model, self.eval_env)
            controller: Behaviour = self.model.gate.controller  # type: ignore[attr-defined]
            alone = options.names.index(controller.name) if controller.is_source else None
            figures["timeline"] = draw_timeline(episode, labels, options.n_sources, alone)
            if self.draw is not None:
                figures.update(self.draw(self.model, episode))
        self._write({f"options/{name}": Figure(figure, close=True) for name, figure in figures.items()})

    def _write_histogram(self, tag: str, terminations: np.ndarray) -> None:
        """As TensorBoard's own, but from 0 to 1 whatever the values: it would zoom in on what hardly moves."""
        assert self._writer is not None
        counts, edges = np.histogram(terminations, TERMINATION_BINS, (0.0, 1.0))
        squares = float(np.square(terminations, dtype=np.float64).sum())
        sums = {"num": terminations.size, "sum": float(terminations.sum(dtype=np.float64)), "sum_squares": squares}
        buckets = {"bucket_limits": edges[1:].tolist(), "bucket_counts": counts.tolist()}
        self._writer.writer.add_histogram_raw(tag, 0.0, 1.0, **sums, **buckets, global_step=self.num_timesteps)


def hyperparameters(model: BaseAlgorithm) -> dict[str, bool | str | float | int | None]:
    """
    :param model: an algorithm
    :return: the arguments that it was made with, as far as TensorBoard can show them
    """
    result: dict[str, bool | str | float | int | None] = {"algorithm": type(model).__name__}
    for cls in type(model).__mro__[:-1]:
        for name in inspect.signature(cls.__init__).parameters:  # type: ignore[misc]
            value = getattr(model, name, None)
            if name == "learning_rate" and callable(value):
                value = float(value(1.0))
            if isinstance(value, (list, tuple, dict)) and value:
                value = str(value)
            if name not in NOT_HYPERPARAMETERS and isinstance(value, (bool, int, float, str)):
                result[name] = value
    options = getattr(model, "options", None)
    if options is not None:
        result["source_policies"] = ", ".join(options.source_names)
    return result


def run_episode(model: Any, env: VecEnv, max_steps: int | None = None) -> Episode:
    """
    Act deterministically for one episode.

    :param model: a CAPS model
    :param env: one environment
    :param max_steps: after how many steps to leave the episode, None to go on to its end
    :return: what happened in each step
    """
    observations: list[Observations] = []
    infos: list[dict[str, Any]] = []
    # Action, option, Q_O, β and reward of each step
    rows: list[tuple[np.ndarray, ...]] = []
    observation: Any = env.reset()
    state, start = None, np.ones(1, dtype=bool)
    while not rows or not (start[0] or len(rows) == max_steps):
        action, state = model.predict(observation, state, start, deterministic=True)
        observations.append(observation)
        values, terminations = model.policy.values_and_terminations(observation)
        observation, reward, start, info = env.step(action)
        rows.append((action, state[0], values, terminations, reward))
        infos.append(info[0])
    actions, options, values, terminations, rewards = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Episode(observations, actions, options, values, terminations, rewards, infos)


def draw_timeline(episode: Episode, names: list[str], n_sources: int, alone: int | None = None) -> Any:
    """
    Draw which option was active when, and how likely it was to end.

    :param episode: the episode
    :param names: the names of all options, or what else to call them
    :param n_sources: how many of them are source policies
    :param alone: the source that ``predict`` acts by, whatever its β is; None when it acts by the learner
    :return: a figure of Matplotlib
    """
    figures = require("matplotlib.figure", "studies")
    used = set(episode.options.tolist())
    # Every source has a line, also when it is not used; there may be many primitives
    rows = [i for i in range(len(names)) if i < n_sources or i in used]
    short = [name if len(name) < 13 else f"{name[:11]}…" for name in names]
    steps = np.arange(len(episode.options))
    height = max(CARD[1], 1.7 + 0.2 * len(rows))
    figure = figures.Figure(figsize=(CARD[0], height), dpi=CARD_DPI, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[max(3, len(rows)), 3])
    for line, i in enumerate(rows):
        bars = [(step, 1) for step in steps[episode.options == i]]
        top.broken_barh(bars, (line - 0.45, 0.9), color=option_colour(i, n_sources), linewidth=0)
    top.set_yticks(range(len(rows)), [short[i] for i in rows])
    top.set_ylim(len(rows) - 0.5, -0.5)
    top.grid(axis="y", alpha=0.3)
    outcome = f"return {episode.rewards.sum():g} in {len(steps)} steps"
    # Else a reader wonders why a source goes on whose β is high
    top.set_title(outcome if alone is None else f"{short[alone]} acts alone: {outcome}", fontsize=11)
    bottom.stairs(
        episode.terminations[steps, episode.options], np.arange(len(steps) + 1), color="0.2", baseline=None, linewidth=2
    )
    bottom.axhline(0.5, color="0.6", linestyle=":", linewidth=1)
    bottom.set(ylim=(0, 1), ylabel="its β", xlabel="step", xlim=(0, len(steps)))
    bottom.xaxis.get_major_locator().set_params(integer=True)
    return figure
