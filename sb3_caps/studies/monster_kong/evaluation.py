"""How good a model is at a Monster Kong task: exactly from vectors of features, by playing from pixels."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.caps import CAPS
from sb3_caps.caps.acting import draw
from sb3_caps.caps.gate import BEST, OPTIONS, SAMPLED_ACTOR
from sb3_caps.envs.monster_kong.env import HORIZON
from sb3_caps.envs.monster_kong.observations import FeatureObserver, observer
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.reuse.evaluation import play
from sb3_caps.reuse.execution import OptionExecution

# The paper evaluates so many steps after each epoch.
EVALUATION_STEPS = 5000


class Outcome(NamedTuple):
    """
    Episodes of a deterministic policy.

    :param returns: the discounted return of each episode
    :param lengths: its number of steps
    """

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def successes(self) -> float:
        """The share of episodes that reached the goal: nothing else is rewarded."""
        return float((self.returns > 0).mean())


class ExactEvaluation:
    """
    One episode from every start, without stepping an environment.

    The game is deterministic and a vector of features tells its state, so a model is asked once about all states, and
    the episodes are followed in tables.

    :param setting: the map
    :param goal: the object to reach
    :param gamma: the discount factor
    :param horizon: the number of steps after which an episode is truncated
    """

    def __init__(self, setting: str | Path, goal: str, gamma: float = 0.99, horizon: int = HORIZON) -> None:
        self.plan = plan(setting, goal)
        self.gamma, self.horizon = gamma, horizon
        self.optimum = self.plan.optimum(gamma)
        found = observer(setting, "features")
        assert isinstance(found, FeatureObserver)
        self.observations = found.vectors
        self._option_actions: np.ndarray | None = None

    def __call__(self, model: BaseAlgorithm) -> Outcome:
        """
        :param model: a DQN, or a CAPS that executes its options as its policy says
        :return: an episode from each start, in the order of ``plan.starts``
        """
        # What an actor draws is drawn alike in each evaluation
        return self.follow(*self._tables(model), np.random.default_rng(0))

    def with_drawn_terminations(self, model: CAPS, seed: int) -> Outcome:
        """
        Evaluate a model whose terminations are drawn.

        :param model: whose options end with probability β, as in the paper's algorithm
        :param seed: of the draws
        :return: an episode from each start
        """
        actions = self.actions_of(model)
        values, beta = model.policy.values_and_terminations(self.observations, actions)
        greedy = OptionExecution("call-and-return", model.policy.execution.margins).greedy_options(values)
        return self.follow(greedy, beta, actions, np.random.default_rng(seed))

    def follow(
        self, greedy: np.ndarray, ends: np.ndarray, actions: np.ndarray, generator: np.random.Generator | None = None
    ) -> Outcome:
        """
        Follow options from every start.

        :param greedy: for each state, the option that is chosen there, or how likely each of them is
        :param ends: for each state and option, whether the option ends there; with what probability, where it is drawn
        :param actions: for each state and option, the action it takes
        :param generator: draws options and whether they end, None where both are known
        :return: an episode from each start
        """

        def choose(states: np.ndarray) -> np.ndarray:
            if greedy.ndim == 1:
                return greedy[states]
            assert generator is not None
            return draw(greedy[states], generator.random(len(states)))

        table = self.plan.table
        reached = table.reached(self.plan.goal)
        ended = reached | table.spiked
        states, running = self.plan.starts.astype(np.int64), np.arange(len(self.plan.starts))
        lengths, won = np.full(len(states), self.horizon), np.zeros(len(states), dtype=bool)
        active = choose(states)
        for step in range(1, self.horizon + 1):
            states = table.successors[states, actions[states, active]]
            done = ended[states]
            lengths[running[done]] = step
            won[running[done]] = reached[states[done]]
            states, active, running = states[~done], active[~done], running[~done]
            if not len(running):
                break
            over = ends[states]
            if generator is not None:
                over = generator.random((len(states), 1)) < over
            active = OptionExecution.next_options(active, False, over, choose(states))
        return Outcome(np.where(won, self.gamma ** (lengths - 1.0), 0.0), lengths)

    def _tables(self, model: BaseAlgorithm) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As ``follow`` takes them: what is chosen in all states, where options end, and the actions that they take."""
        if isinstance(model, CAPS):
            controller, actions = model.gate.controller, self.actions_of(model)
            if controller in (OPTIONS, BEST):
                values, beta = model.policy.values_and_terminations(self.observations, actions)
                execution = model.policy.execution
                return execution.greedy_options(values), execution.ends(values, beta), actions
            if controller == SAMPLED_ACTOR:
                acting = model.policy.acting()
                chosen = np.zeros(actions.shape, dtype=np.float32)
                n_sources = model.options.n_sources
                chosen[:, n_sources:] = acting.action_probabilities(self.observations, actions[:, :n_sources])
            else:
                # A source, or the likeliest option of the actor: as at the start of an episode
                _, (chosen, *_) = model.predict(self.observations, deterministic=True)
            return chosen, np.ones(actions.shape, dtype=bool), actions
        with th.no_grad():
            values = model.policy.q_net(model.policy.obs_to_tensor(self.observations)[0]).cpu().numpy()  # type: ignore[operator]
        actions = np.broadcast_to(np.arange(values.shape[1]), values.shape)
        return values.argmax(axis=1), np.ones(values.shape, dtype=bool), actions

    def actions_of(self, model: CAPS) -> np.ndarray:
        """
        Find the actions of a model's options in all states.

        :param model: with the sources of the task
        :return: for each state, the action of each option
        """
        # Sources are never trained, so they are asked once
        if self._option_actions is None:
            starts = np.zeros(len(self.observations), dtype=bool)
            self._option_actions, _ = model.options.actions(self.observations, model.options.initial_states(), starts)
        return self._option_actions


class PlayedEvaluation:
    """
    Episodes from random starts, as many as the paper's number of steps holds.

    :param setting: the map
    :param goal: the object to reach
    :param observation: what the model observes
    :param gamma: the discount factor
    :param n_steps: how many steps to play in all
    :param seed: of the starts, the same in each evaluation
    """

    def __init__(
        self,
        setting: str | Path,
        goal: str,
        observation: str,
        gamma: float = 0.99,
        n_steps: int = EVALUATION_STEPS,
        seed: int = 0,
    ) -> None:
        # As many games as can each play one longest episode
        self.env: VecEnv = MonsterKongVecEnv(max(n_steps // HORIZON, 1), setting, goal, observation)
        self.n_steps, self.gamma, self.seed = n_steps, gamma, seed
        self.optimum = plan(setting, goal).optimum(gamma)

    def __call__(self, model: BaseAlgorithm) -> Outcome:
        """
        :param model: what to play with
        :return: the episodes that began within the steps, each played to its end
        """
        n_games = self.env.num_envs
        self.env.seed(self.seed)
        returns: list[float] = []
        lengths: list[int] = []
        ages, playing = np.zeros(n_games, dtype=np.int64), np.ones(n_games, dtype=bool)
        for step, (rewards, dones) in enumerate(play(model, self.env), start=1):
            ages, ended = ages + 1, dones & playing
            returns.extend((rewards * self.gamma ** (ages - 1.0))[ended].tolist())
            lengths.extend(ages[ended].tolist())
            ages[dones] = 0
            if step >= self.n_steps // n_games:
                playing &= ~dones
            if not playing.any():
                break
        return Outcome(np.array(returns), np.array(lengths))


def paper_average(outcome: Outcome, seed: int, n_steps: int = EVALUATION_STEPS) -> float:
    """
    The paper's measure, from the exact episodes of all starts: a deterministic policy plays each of them the same way.

    :param outcome: an episode from each start
    :param seed: of the draw of starts
    :param n_steps: how many steps to play
    :return: the mean discounted return of the episodes that ``n_steps`` steps begin
    """
    drawn = np.random.default_rng(seed).integers(len(outcome.returns), size=n_steps)
    begun = np.cumsum(outcome.lengths[drawn]) - outcome.lengths[drawn] < n_steps
    return float(outcome.returns[drawn[begun]].mean())
