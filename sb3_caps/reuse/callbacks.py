"""What TensorBoard shows of a run, beside the scalars that the algorithms log."""

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Figure, HumanOutputFormat, TensorBoardOutputFormat
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, sync_envs_normalization

from sb3_caps.colours import option_colour
from sb3_caps.extras import require
from sb3_caps.reuse.action_names import action_names, option_labels
from sb3_caps.reuse.episodes import Behaviour
from sb3_caps.reuse.options import OptionSet
from sb3_caps.sources import Observations, with_masks
from sb3_caps.sources.act import by_key

# A card of TensorBoard is some 310 by 240 pixels: at this size in inches letters can be read there, and more dots keep
# them sharp when a card is made large.
CARD, CARD_DPI = (4.2, 3.2), 200
# β is drawn on an axis from 0 to 1, in so many parts
TERMINATION_BINS = 25
# Longer episodes of training are not drawn: they would have to be remembered
LONGEST_TIMELINE = 1000
# The tab "Custom Scalars": what to look at first. A chart whose tags are not logged stays empty.
LAYOUT = {
    "What CAPS does": {
        title: ["Multiline", tags]
        for title, tags in {
            "Return in training, whoever acted": ["rollout/ep_rew_mean"],
            "Lead of the learner over the best source, in return": ["reuse/learner_lead"],
            "Who predict acts by: 0 = learner, 1 = first source, 2 = second": ["reuse/acts_by_source"],
            "Share of training steps decided by sources": ["options/source_share"],
            # Lines of one run have one colour: a chart for each
            "Return in evaluations: the model": ["eval/mean_reward"],
            "Return in evaluations: the learner alone": ["eval/learner_mean_reward"],
        }.items()
    }
}
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
    - the timeline of active options of an episode (``options/timeline``)
    - whatever ``draw`` draws (``options/<name>``)
    - hyperparameters, in the HParams tab
    - the charts to look at first, in the tab Custom Scalars

    It draws nothing at random, so a run is the same with and without it, and does nothing without TensorBoard. ``CAPS``
    has one by itself where it has a ``tensorboard_log`` and is given none.

    :param eval_env: One environment for an evaluation episode; None to draw the latest episode of training
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
        # Without an environment of its own: the steps of the episode under way in the first one, and the latest whole
        # episode with who acted in it
        self._steps: list[tuple[Any, ...]] = []
        self._latest: tuple[list[tuple[Any, ...]], Behaviour] | None = None

    def _on_training_start(self) -> None:
        super()._on_training_start()
        if self._writer is not None:
            self._writer.writer.add_custom_scalars(LAYOUT)

    def _init_callback(self) -> None:
        if not hasattr(self.model, "learner"):
            raise ValueError(f"OptionMonitor is for CAPS, not {type(self.model).__name__}: see HyperparameterLog.")
        self._states: deque[Observations] = deque(maxlen=max(1, self.n_states // self.training_env.num_envs))
        self._last_look = self.num_timesteps
        self._steps, self._latest = [], None

    def _on_step(self) -> bool:
        if self._writer is not None:
            self._states.append(self.locals["new_obs"])
            if self.eval_env is None:
                self._follow_training()
            if self.num_timesteps >= self._last_look + self.every:
                self._look()
        return True

    def _on_training_end(self) -> None:
        if self._writer is not None and self.num_timesteps > self._last_look:
            self._look()

    def _follow_training(self) -> None:
        """Remember what is done in the first environment."""
        model, found = self.model, self.locals
        if len(self._steps) <= LONGEST_TIMELINE:
            normalizer = model.get_vec_normalize_env()
            rewards = found["rewards"] if normalizer is None else normalizer.get_original_reward()
            observation = {key: value[:1].copy() for key, value in by_key(model._last_obs).items()}
            self._steps.append((observation, found["actions"][0], model._last_options[0], rewards[0]))  # type: ignore[attr-defined]
        if found["dones"][0]:
            if len(self._steps) <= LONGEST_TIMELINE:
                self._latest = self._steps, model._tracker.behaviours[0]  # type: ignore[attr-defined]
            self._steps = []

    def _training_episode(self, steps: list[tuple[Any, ...]]) -> Episode:
        observations, actions, options, rewards = zip(*steps, strict=True)
        batch: Any = {key: np.concatenate([each[key] for each in observations]) for key in observations[0]}
        values, terminations = self.model.policy.values_and_terminations(batch.get(None, batch))  # type: ignore[operator]
        shown = [each.get(None, each) for each in observations]
        numbers = np.array(actions), np.array(options), values, terminations, np.array(rewards)
        return Episode(shown, *numbers, infos=[{}] * len(steps))

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
        elif self._latest is not None:
            steps, behaviour = self._latest
            episode = self._training_episode(steps)
            figures["timeline"] = draw_timeline(episode, labels, options.n_sources, trained_by=behaviour.name)
        if figures and self.draw is not None:
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
    acting = with_masks(model, env)
    observations: list[Observations] = []
    infos: list[dict[str, Any]] = []
    # Action, option, Q_O, β and reward of each step
    rows: list[tuple[np.ndarray, ...]] = []
    observation: Any = env.reset()
    state, start = None, np.ones(1, dtype=bool)
    while not rows or not (start[0] or len(rows) == max_steps):
        action, state = acting.predict(observation, state, start, deterministic=True)
        observations.append(observation)
        values, terminations = model.policy.values_and_terminations(observation)
        observation, reward, start, info = env.step(action)
        # An algorithm for continuous actions that has no sources has no state
        active = np.array([model.options.n_sources]) if state is None else state[0]
        rows.append((action, active, values, terminations, reward))
        infos.append(info[0])
    actions, options, values, terminations, rewards = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Episode(observations, actions, options, values, terminations, rewards, infos)


def draw_timeline(
    episode: Episode, names: list[str], n_sources: int, alone: int | None = None, trained_by: str | None = None
) -> Any:
    """
    Draw which option was active when, and how likely it was to end.

    :param episode: the episode
    :param names: the names of all options, or what else to call them
    :param n_sources: how many of them are source policies
    :param alone: the source that ``predict`` acts by, whatever its β is; None when it acts by the learner
    :param trained_by: what acted, in an episode of training
    :return: a figure of Matplotlib
    """
    figures = require("matplotlib.figure", "studies")
    used = set(episode.options.tolist())
    # Every source has a line, also when it is not used; there may be many primitives
    rows = [i for i in range(len(names)) if i < n_sources or i in used]
    short = [_shortened(name) for name in names]
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
    if trained_by is not None:
        outcome = f"training, {_shortened(trained_by, 24)}: {outcome}"
    # Else a reader wonders why a source goes on whose β is high
    top.set_title(outcome if alone is None else f"{short[alone]} acts alone: {outcome}", fontsize=11)
    bottom.stairs(
        episode.terminations[steps, episode.options], np.arange(len(steps) + 1), color="0.2", baseline=None, linewidth=2
    )
    bottom.axhline(0.5, color="0.6", linestyle=":", linewidth=1)
    bottom.set(ylim=(0, 1), ylabel="its β", xlabel="step", xlim=(0, len(steps)))
    bottom.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _shortened(name: str, longest: int = 12) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def with_monitor(callback: MaybeCallback) -> MaybeCallback:
    """
    :param callback: what ``learn`` was given
    :return: the same, with an ``OptionMonitor`` where there is none
    """
    given = callback if isinstance(callback, list) else [callback]
    if any(isinstance(each, OptionMonitor) for each in _each(given)):
        return callback
    made = [each if isinstance(each, BaseCallback) else ConvertCallback(each) for each in given if each is not None]
    return [*made, OptionMonitor()]


def _each(callbacks: list[Any]) -> Iterator[Any]:
    for callback in callbacks:
        yield callback
        if isinstance(callback, CallbackList):
            yield from _each(callback.callbacks)


@contextmanager
def evaluated_with_masks(callback: EvalCallback) -> Iterator[None]:
    """
    Let SB3 evaluate a model with the action masks of the environments.

    :param callback: evaluates its model in here
    """
    model = callback.model
    callback.model = with_masks(model, callback.eval_env)
    try:
        yield
    finally:
        callback.model = model


class ReuseEvalCallback(EvalCallback):
    """
    SB3's ``EvalCallback`` that also evaluates the learner alone, as ``eval/learner_mean_reward``. While CAPS acts
    by a source, ``eval/mean_reward`` tells what the source is worth, and nothing of what was learned.
    Action masks of the environments are passed on.

    :param args: The arguments of ``EvalCallback``
    :param learner_alone: Whether all is judged by the learner alone: ``eval/mean_reward``, the best model, and a
        callback as ``StopTrainingOnRewardThreshold``. The model itself is ``eval/model_mean_reward`` then.
    :param kwargs: The arguments of ``EvalCallback`` by name
    """

    def __init__(self, *args: Any, learner_alone: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.learner_alone = learner_alone

    def _init_callback(self) -> None:
        if not hasattr(self.model, "learner"):
            raise ValueError(f"ReuseEvalCallback is for CAPS, not {type(self.model).__name__}: use SB3's EvalCallback.")
        super()._init_callback()

    def _on_step(self) -> bool:
        if self.eval_freq <= 0 or self.n_calls % self.eval_freq != 0:
            return True
        learner = self.model.learner()  # type: ignore[attr-defined]
        other, tag = (self.model, "model") if self.learner_alone else (learner, "learner")
        differs = learner.behaviour != self.model.gate.controller  # type: ignore[attr-defined]
        if differs:
            # Before SB3's own evaluation, which writes what is there
            if isinstance(self.eval_env, VecNormalize):
                sync_envs_normalization(self.training_env, self.eval_env)
            acting = with_masks(other, self.eval_env)
            reward, _ = evaluate_policy(acting, self.eval_env, self.n_eval_episodes, self.deterministic, warn=self.warn)
            self.logger.record(f"eval/{tag}_mean_reward", float(np.mean(reward)))
        with learner.acting() if self.learner_alone else nullcontext(), evaluated_with_masks(self):
            goes_on = super()._on_step()
        if not differs:
            # They are the same, and the table on the screen is written already
            for form in self.logger.output_formats:
                if not isinstance(form, HumanOutputFormat):
                    name = f"eval/{tag}_mean_reward"
                    form.write({name: self.last_mean_reward}, {name: ()}, self.num_timesteps)
        return goes_on
