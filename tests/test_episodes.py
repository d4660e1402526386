"""The ledger of episodes by hand, and that the four algorithms that choose by episodes keep it."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import OPSTL, PRQL, JumpStart, QDagger, as_source
from sb3_caps.reuse.episodes import Behaviour, EpisodeResult, EpisodeTracker, longest_trial
from sb3_caps.reuse.episodic import EpisodicReuseAlgorithm
from sb3_caps.reuse.guided import Guided
from sb3_caps.reuse.selectors import LEARNED, RANDOM, EvidenceSelector, Selector
from tests.hand_walk import go_left, go_right
from tests.test_prql import SMALL, Actions, counts, means

ALGORITHMS = [PRQL, OPSTL, JumpStart, QDagger]
ONE, OTHER = Behaviour("one", is_source=True), Behaviour("other")


def steps(tracker: EpisodeTracker, *rewards: list[float], dones: list[bool] | None = None) -> list[EpisodeResult]:
    """Some steps of which the last may end episodes."""
    results = []
    for i, each in enumerate(rewards):
        over = dones if dones is not None and i == len(rewards) - 1 else [False] * len(each)
        results += tracker.add(np.array(each), np.array(over))
    return results


def test_results_by_hand() -> None:
    tracker = EpisodeTracker(2, gamma=0.5)
    assert tracker.waiting == [0, 1]
    tracker.start(0, ONE)
    tracker.start(1, OTHER)
    assert tracker.waiting == []
    # 4 + 2/2 + 8/4, and -1 + 0 + 4/4
    found = steps(tracker, [4, -1], [2, 0], [8, 4], dones=[True, False])
    assert found == [EpisodeResult(env=0, behaviour=ONE, discounted=7.0, reward=14.0, length=3)]
    assert tracker.waiting == [0]
    tracker.start(0, OTHER)
    # The first begins anew, and the second goes on: 8/8
    found = steps(tracker, [3, 8], dones=[True, True])
    assert found == [EpisodeResult(0, OTHER, 3.0, 3.0, 1), EpisodeResult(1, OTHER, 1.0, 11.0, 4)]


def test_what_nobody_began_has_no_result() -> None:
    tracker = EpisodeTracker(1, gamma=0.9)
    assert steps(tracker, [5.0], [5.0], dones=[True]) == []
    tracker.start(0, ONE)
    assert steps(tracker, [2.0], dones=[True]) == [EpisodeResult(0, ONE, 2.0, 2.0, 1)]


def test_an_episode_beyond_the_limit_counts_as_several() -> None:
    tracker = EpisodeTracker(2, gamma=1.0, limit=3)
    for env in range(2):
        tracker.start(env, ONE)
    assert steps(tracker, [1, 1], [1, 1], dones=[False, True]) == [EpisodeResult(1, ONE, 2.0, 2.0, 2)]
    tracker.start(1, OTHER)
    assert steps(tracker, [5, 1]) == [EpisodeResult(0, ONE, 7.0, 7.0, 3)]
    tracker.start(0, OTHER)
    # The rest of the long one, which ends by itself
    assert steps(tracker, [2, 1], dones=[True, False]) == [EpisodeResult(0, OTHER, 2.0, 2.0, 1)]


@pytest.mark.parametrize(("gamma", "expected"), [(0.9, 100), (0.99, 1000), (0.999, 10_000), (1.0, np.inf)])
def test_a_trial_is_ten_horizons_of_the_discount(gamma: float, expected: float) -> None:
    assert longest_trial(gamma) == expected


def test_a_source_is_not_what_else_has_its_name() -> None:
    assert Behaviour("learned", is_source=True) != LEARNED
    assert len({Behaviour("random", is_source=True), RANDOM, Behaviour("random")}) == 2


class Counting(gym.Env[np.ndarray, np.int64]):
    """
    1 for every step to the right and 0.5 for one to the left, whatever comes; what is observed are the steps so far.

    :param horizon: number of steps of an episode, None for one that never ends
    """

    def __init__(self, horizon: int | None = 4) -> None:
        self.horizon = horizon
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        observation = np.array([self.steps], dtype=np.float32)
        return observation, (1.0 if action == 1 else 0.5), self.steps == self.horizon, False, {}


def make(algorithm: type[Any], n_envs: int = 1, horizon: int | None = 4, **kwargs: Any) -> Any:
    env = make_vec_env(lambda: Counting(horizon), n_envs)
    # One source alone, so that every return is known: 4, or what random actions and the learner get
    kwargs = {"source_policies": [go_right], "train_freq": 1, "gradient_steps": 0, **SMALL, **kwargs}
    if algorithm in (PRQL, OPSTL):
        kwargs.setdefault("reuse_decay", 1.0)
    return algorithm("MlpPolicy", env, **kwargs)


def results_of(model: Any) -> list[EpisodeResult]:
    """All results that the selector of a model will be told."""
    results: list[EpisodeResult] = []
    update = model.selector.update

    def recorded(result: EpisodeResult) -> None:
        results.append(result)
        update(result)

    model.selector.update = recorded
    return results


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_sums_are_those_of_whole_episodes(algorithm: type[Any], n_envs: int) -> None:
    model = make(algorithm, n_envs, gamma=0.5)
    results = results_of(model)
    # Stopped within an episode, which is over when the environments are reset
    for _ in range(5):
        model.learn(10 * n_envs)
    assert len(results) == 5 * 2 * n_envs
    for result in results:
        assert result.length == 4
        assert 2.0 <= result.reward <= 4.0
        assert 0.9375 <= result.discounted <= 1.875
        if result.behaviour == Behaviour("go_right", is_source=True):
            assert (result.reward, result.discounted) == (4.0, 1.875)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_new_environments_begin_new_episodes(algorithm: type[Any], tmp_path: Path) -> None:
    model = make(algorithm, n_envs=2).learn(6)
    assert model._tracker.lengths.tolist() == [3, 3]
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", env=make_vec_env(Counting, 3))
    model.set_env(make_vec_env(Counting, 2))
    for each in (model, loaded):
        results = results_of(each)
        each.learn(4 * each.n_envs, reset_num_timesteps=False)
        assert [result.length for result in results] == [4] * each.n_envs
        # Those that were under way are under way no more
        assert sum(each.selector.running.values()) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_goes_on_within_an_episode(algorithm: type[Any]) -> None:
    model = make(algorithm)
    results = results_of(model)
    for _ in range(4):
        model.learn(3, reset_num_timesteps=False)
    assert [result.length for result in results] == [4, 4, 4]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_stop_at_the_end_of_an_episode_merges_it_with_no_other(
    algorithm: type[Any], interrupted: bool, normalized: bool
) -> None:
    model = make(algorithm, gamma=1.0)
    if normalized:
        model.set_env(VecNormalize(model.get_env(), norm_obs=False))
    results = results_of(model)

    def stop(local: dict[str, Any], _: dict[str, Any]) -> bool:
        if local["dones"].any() and interrupted:
            raise KeyboardInterrupt
        return not local["dones"].any()

    for run in range(1, 13):
        try:
            model.learn(100, callback=stop, reset_num_timesteps=False)
        except KeyboardInterrupt:
            assert interrupted
        assert [result.length for result in results] == [4] * run
        assert model.num_timesteps == 4 * run
    assert means(model)[0] == 4.0
    # Every step was stored, after the observation that it was taken in
    buffer = model.replay_buffer
    assert buffer.size() == 48
    np.testing.assert_array_equal(buffer.next_observations[:48] - buffer.observations[:48], 1)
    assert buffer.observations[:48].ravel().tolist() == [0, 1, 2, 3] * 12


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_stop_within_an_episode_keeps_its_step_too(algorithm: type[Any]) -> None:
    model = make(algorithm, n_envs=2)
    results = results_of(model)
    for _ in range(4):
        model.learn(100, callback=lambda *_: False, reset_num_timesteps=False)
    assert [result.length for result in results] == [4, 4]
    assert model.replay_buffer.observations[:4, 0].ravel().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_that_failed_is_not_counted(algorithm: type[Any]) -> None:
    model = make(algorithm)
    results = results_of(model)
    model.learn(2)
    env = model.get_env().envs[0].unwrapped
    step, env.step = env.step, lambda action: 1 / 0
    with pytest.raises(ZeroDivisionError):
        model.learn(10, reset_num_timesteps=False)
    env.step = step
    model.learn(2, reset_num_timesteps=False)
    assert [result.length for result in results] == [4]
    assert model.replay_buffer.size() == 4


@pytest.mark.parametrize("algorithm", [JumpStart, QDagger])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_trials_end_where_episodes_do_not(algorithm: type[Any], n_envs: int) -> None:
    more: dict[str, Any] = {"teacher_fraction": 0.5} if algorithm is QDagger else {"curriculum_stages": 2}
    arguments = {"source_policies": [go_left, go_right], "trial_episodes": 1, "average_episodes": 1, "gamma": 0.9}
    no_exploration = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0, "learning_starts": 0}
    model = make(algorithm, n_envs, horizon=None, **arguments, **more, **no_exploration)
    results, taken = results_of(model), Actions()
    model.learn(1200 * n_envs, callback=taken)
    # 10 / (1 - 0.9) steps are a trial
    assert {result.length for result in results} == {100}
    assert means(model)[:2] == [50.0, 100.0]
    assert counts(model) == ([1, 1, 1] if n_envs == 1 else [2, 1, 1])
    assert model.selector.guide == Behaviour("go_right", is_source=True)
    if algorithm is QDagger:
        # The student's turn comes too
        assert {result.behaviour for result in results if result.env == 0} >= {LEARNED}
        assert model.selector.recent_return is not None
    else:
        # The guide has the first half of 100 steps, and the learned policy the rest
        assert np.concatenate(taken.actions[300:350]).all()
        assert model.selector.initial_horizon == 100
        guided = {result.behaviour for result in results if isinstance(result.behaviour, Guided)}
        assert guided == {Guided("go_right", is_source=True, steps=50)}


@pytest.mark.parametrize("algorithm", [PRQL, OPSTL])
def test_a_choice_is_made_again_where_episodes_do_not_end(algorithm: type[Any]) -> None:
    model = make(algorithm, horizon=None, source_policies=[go_left, go_right], gamma=0.9, learning_starts=0)
    results = results_of(model)
    model.learn(2000)
    assert {result.length for result in results} == {100}
    assert counts(model)[1] > counts(model)[0] > 0
    assert sum(counts(model)) == len(results) == 20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("loaded", [False, True])
def test_another_discount_is_compared_with_nothing_of_before(
    algorithm: type[Any], loaded: bool, tmp_path: Path
) -> None:
    # Stopped in the middle of an episode, which has no discount of its own
    model = make(algorithm, n_envs=2, gamma=0.5).learn(204)
    if loaded:
        model.save(tmp_path / "model")
        model = algorithm.load(tmp_path / "model", env=model.get_env(), gamma=1.0)
    else:
        model.gamma = 1.0
    before, results = model.selector, results_of(model)
    model.learn(2, reset_num_timesteps=False)
    assert model.selector is not before
    assert not results
    results = results_of(model)
    model.learn(40, reset_num_timesteps=False)
    assert results
    assert all(result.discounted == result.reward for result in results)
    assert sum(counts(model)) <= len(results)
    assert model.selector.running.total() == 2
    assert means(model)[0] in (0.0, 4.0)
    # As long as it stays the same, so does what is known
    before = model.selector
    model.learn(40, reset_num_timesteps=False)
    assert model.selector is before


def learned(observations: np.ndarray) -> np.ndarray:
    """A source that is called as the policy that learns."""
    return go_right(observations)


def random(observations: np.ndarray) -> np.ndarray:
    """A source that is called as random actions."""
    return go_right(observations)


class Recorder(Logger):
    """Keeps how many times each name was used."""

    def __init__(self) -> None:
        super().__init__(None, [])
        self.uses: Counter[str] = Counter()

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        self.uses[key] += 1
        super().record(key, value, exclude)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sources_may_be_called_as_what_else_acts(algorithm: type[Any]) -> None:
    # One that is not allowed such a name is given another, and either way nothing is mixed up
    model = make(algorithm, n_envs=2, source_policies=[learned, random, as_source(go_left, name="own")])
    model.set_logger(Recorder())
    model.learn(400, log_interval=2)
    behaviours = list(model.selector.evidence)
    others: list[Behaviour] = [RANDOM] if algorithm in (JumpStart, QDagger) else [LEARNED] if algorithm is PRQL else []
    assert [behaviour.is_source for behaviour in behaviours] == [True] * 3 + [False] * len(others)
    assert behaviours[3:] == others
    assert len({behaviour.name for behaviour in behaviours}) == len(behaviours)
    # The first two get 4 in every episode, which neither random actions nor the learner do
    worth = [4.0 if algorithm in (JumpStart, QDagger) else (1 - 0.99**4) / 0.01, 0.0]
    np.testing.assert_allclose(means(model)[:2], worth[0])
    assert all(mean < worth[0] for mean in means(model)[2:])
    dumps = model.logger.uses["time/episodes"]
    assert dumps > 20
    for behaviour in behaviours:
        assert model.logger.uses[f"reuse/gain/{behaviour.name}"] == dumps


@dataclass(eq=False)
class InTurn(EvidenceSelector):
    """Every source as often as the others, and later ones first."""

    patience: int

    def choose(self) -> Behaviour:
        return min(reversed(self.sources), key=lambda source: self.evidence[source].n // self.patience)


class TakingTurns(EpisodicReuseAlgorithm):
    """An algorithm of one's own: a selector, and how sources are followed."""

    selector_class = InTurn

    def __init__(self, *args: Any, patience: int = 2, **kwargs: Any) -> None:
        self.patience = patience
        super().__init__(*args, **kwargs)

    def _reuse_probabilities(self, steps: np.ndarray) -> np.ndarray:
        return np.ones(len(steps))


def test_a_selector_of_ones_own(tmp_path: Path) -> None:
    model = make(TakingTurns, source_policies=[go_left, go_right])
    results = results_of(model)
    model.learn(32)
    assert [result.reward for result in results] == [4, 4, 2, 2] * 2
    selector: Selector = model.selector
    assert selector.decide() == LEARNED
    del model.selector.update
    model.save(tmp_path / "model")
    again: Any = TakingTurns.load(tmp_path / "model", env=make_vec_env(Counting, 1), patience=4)
    again.learn(8)
    assert counts(again) == [4, 6]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nobody_else_who_draws_changes_a_run(algorithm: type[Any]) -> None:
    runs, learned = [], []
    for noisy in (False, True):
        taken = Actions()

        def noise(*_: Any, noisy: bool = noisy) -> bool:
            return not noisy or np.random.random() >= 0.0

        model = make(
            algorithm, n_envs=2, exploration_initial_eps=0.5, exploration_final_eps=0.5, gradient_steps=1, seed=0
        )
        model.learn(400, callback=[taken, ConvertCallback(noise)])
        runs.append(np.array(taken.actions))
        learned.append(model.q_net.q_net[-1].bias.tolist())
    np.testing.assert_array_equal(runs[0], runs[1])
    assert learned[0] == learned[1]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_loaded_model_goes_on_drawing_where_it_was(algorithm: type[Any], tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"n_envs": 2, "exploration_initial_eps": 0.5, "exploration_final_eps": 0.5}
    if algorithm in (PRQL, OPSTL):
        kwargs["reuse_decay"] = 0.5
    model = make(algorithm, **kwargs).learn(300)
    model.save(tmp_path / "model")
    model.set_env(make_vec_env(Counting, 2))
    again = make(algorithm, **kwargs)
    runs = []
    for each in (model, algorithm.load(tmp_path / "model", env=make_vec_env(Counting, 2)), again):
        taken = Actions()
        each.learn(300, callback=taken, reset_num_timesteps=False)
        runs.append(np.array(taken.actions))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()
