"""PRQL: its choice of policies, π-reuse and gains, and what it shares with every algorithm that reuses by episode."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from sb3_caps import OPSTL, PRQL
from sb3_caps.reuse.episodes import EpisodeResult
from tests.hand_walk import LEFT, Walk, go_left, go_right

ALGORITHMS = [PRQL, OPSTL]
SMALL: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}, "buffer_size": 2000, "seed": 3, "device": "cpu"}


def make(algorithm: type[Any] = PRQL, n_envs: int = 1, **kwargs: Any) -> Any:
    env = make_vec_env(Walk, n_envs, env_kwargs=kwargs.pop("env_kwargs", None))
    kwargs = {"source_policies": [go_left, go_right], **SMALL, **kwargs}
    return algorithm("MlpPolicy", env, **kwargs)


def always(model: Any, arm: int) -> Any:
    """Choose the same behaviour for every episode."""
    model.selector.choose = lambda: list(model.selector.evidence)[arm]
    return model


def finish(model: Any, arm: int, gain: float) -> None:
    """Let an episode of a behaviour end with this discounted return."""
    behaviour = list(model.selector.evidence)[arm]
    model.selector.running[behaviour] += 1
    model.selector.update(EpisodeResult(env=0, behaviour=behaviour, discounted=gain, reward=np.nan, length=4))


def counts(model: Any) -> list[int]:
    """How many episodes each behaviour has had."""
    return [known.n for known in model.selector.evidence.values()]


def means(model: Any) -> list[float]:
    """What each behaviour was worth."""
    return [known.mean for known in model.selector.evidence.values()]


def prefer(model: Any, action: int) -> None:
    """Make one action the greedy one in every state."""
    with th.no_grad():
        model.q_net.q_net[-1].weight.zero_()
        model.q_net.q_net[-1].bias.copy_(th.eye(2)[action])


class Actions(BaseCallback):
    """Keep the actions and ends of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[np.ndarray] = []
        self.dones: list[np.ndarray] = []

    def _on_step(self) -> bool:
        self.actions.append(self.locals["actions"].copy())
        self.dones.append(self.locals["dones"].copy())
        return True


def test_selection_is_a_softmax_over_gains() -> None:
    model = make(temperature=2.0, temperature_growth=0.0)
    selector = model.selector
    np.testing.assert_allclose(selector.probabilities, [1 / 3, 1 / 3, 1 / 3])
    for arm, gain in enumerate([0.0, 0.5, 1.0]):
        finish(model, arm, gain)
    # e^0, e^1 and e^2 over their sum, 11.1073
    np.testing.assert_allclose(selector.probabilities, [0.0900, 0.2447, 0.6652], atol=1e-4)
    drawn = [list(selector.evidence).index(selector.choose()) for _ in range(20_000)]
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, [0.0900, 0.2447, 0.6652], atol=0.015)


def test_temperature_grows_with_every_episode() -> None:
    model = make()
    selector = model.selector
    assert selector.current_temperature == 0
    for arm, gain in enumerate([0.0, 0.5, 1.0]):
        finish(model, arm, gain)
    assert selector.current_temperature == pytest.approx(0.15)
    # e^0, e^0.075 and e^0.15 over their sum, 3.2397
    np.testing.assert_allclose(selector.probabilities, [0.3087, 0.3327, 0.3586], atol=1e-4)
    selector.temperature_growth = 1e6
    np.testing.assert_allclose(selector.probabilities, [0, 0, 1])


def test_gains_are_running_means_of_discounted_returns() -> None:
    model = make()
    for arm, gain in ((1, 0.4), (1, 0.8), (2, -2.0), (1, 0.0)):
        finish(model, arm, gain)
    assert counts(model) == [0, 3, 1]
    np.testing.assert_allclose(means(model), [0.0, 0.4, -2.0])
    # In units of the largest return, whatever its sign
    np.testing.assert_allclose(model.selector.gains, [0.0, 0.2, -1.0])


@pytest.mark.parametrize("n_envs", [1, 3])
def test_the_gain_of_an_episode_is_its_discounted_return(n_envs: int) -> None:
    model = always(make(n_envs=n_envs, gamma=0.9, reuse_decay=1.0), arm=1)
    # Four steps to the right end an episode with the reward of the fourth
    model.learn(8 * n_envs)
    assert counts(model) == [0, 2 * n_envs, 0]
    np.testing.assert_allclose(means(model), [0.0, 0.9**3, 0.0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reuse_decays_within_an_episode_and_starts_anew(algorithm: type[Any]) -> None:
    model = always(make(algorithm, reuse_probability=0.8, reuse_decay=0.5, env_kwargs={"horizon": 3, "length": 9}), 0)
    reuse: list[float] = []

    def watched(*_: Any) -> bool:
        reuse.extend(model._reuse_probabilities(model._tracker.lengths))
        return True

    model.learn(8, callback=watched)
    np.testing.assert_allclose(reuse, [0.8, 0.4, 0.2, 0.8, 0.4, 0.2, 0.8, 0.4])


def test_a_source_is_followed_with_the_probability_of_reuse() -> None:
    task = {"length": 9, "horizon": 3}
    model = always(make(n_envs=50, reuse_decay=0.5, learning_starts=0, gradient_steps=0, env_kwargs=task), arm=1)
    prefer(model, LEFT)
    followed = Actions()
    # In step h the source is followed with ψ = 2^-h; otherwise the step is random with ψ, and greedy, to the left, else
    model.learn(3 * 50 * 60, callback=followed)
    right = np.array(followed.actions).reshape(60, 3, 50).mean(axis=(0, 2))
    psi = 0.5 ** np.arange(3)
    np.testing.assert_allclose(right, psi + (1 - psi) * psi / 2, atol=0.03)


def test_the_learned_policy_acts_greedily_when_it_is_chosen() -> None:
    model = always(make(n_envs=2, learning_starts=0, gradient_steps=0), arm=2)
    prefer(model, 1)
    taken = Actions()
    model.learn(40, callback=taken)
    assert np.array(taken.actions).all()
    assert model.exploration_rate == 0.0


def test_epsilon_adds_exploration_where_it_is_above_reuse() -> None:
    model = make(reuse_probability=0.9, reuse_decay=1 / 9)
    # In the third environment the learned policy was drawn; ψ is 0.9, 0.1 and 0.9
    model._sources, steps = np.array([0, 1, 2]), np.array([0, 1, 0])
    np.testing.assert_allclose(model._random_probabilities(0.3, steps), [0.9, 0.3, 0.3])
    np.testing.assert_allclose(model._random_probabilities(0.0, steps), [0.9, 0.1, 0.0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_returns_are_in_the_rewards_of_the_task(algorithm: type[Any]) -> None:
    env = VecNormalize(make_vec_env(Walk, 2))
    seen = []

    def right(observations: np.ndarray) -> np.ndarray:
        seen.append(observations)
        return go_right(observations)

    model = algorithm("MlpPolicy", env, source_policies=[right], gamma=0.5, reuse_decay=1.0, **SMALL)
    always(model, arm=0).learn(16)
    assert means(model)[0] == pytest.approx(0.125)
    assert all(set(np.unique(observations)) == {0.0, 1.0} for observations in seen)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_gives_the_same_run(algorithm: type[Any]) -> None:
    runs = [make(algorithm, n_envs=2).learn(600) for _ in range(2)]
    assert means(runs[0]) == means(runs[1])
    for one, other in zip(runs[0].policy.parameters(), runs[1].policy.parameters(), strict=True):
        assert th.equal(one, other)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_saving_brings_back_what_was_learned(algorithm: type[Any], tmp_path: Path) -> None:
    model = make(algorithm, n_envs=2, reuse_decay=0.9).learn(400)
    model.save(tmp_path / "model")
    env = make_vec_env(Walk, 3)
    loaded = algorithm.load(tmp_path / "model", env=env)
    assert list(loaded.selector.evidence) == list(model.selector.evidence)
    assert loaded.reuse_decay == 0.9
    assert counts(loaded) == counts(model)
    assert means(loaded) == means(model)
    observations = np.eye(5, dtype=np.float32)
    np.testing.assert_array_equal(
        loaded.predict(observations, deterministic=True)[0], model.predict(observations, deterministic=True)[0]
    )
    loaded.learn(300, reset_num_timesteps=False)
    assert sum(counts(loaded)) > sum(counts(model))
    with pytest.raises(ValueError, match="has 2 source policies"):
        algorithm.load(tmp_path / "model", env=env, source_policies=[go_left])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_halves_make_the_same_run_as_a_whole(algorithm: type[Any]) -> None:
    # A constant exploration rate: a linear one would know how long each call is
    kwargs = {"exploration_initial_eps": 0.1, "exploration_final_eps": 0.1}
    whole = make(algorithm, n_envs=2, **kwargs).learn(600)
    half = make(algorithm, n_envs=2, **kwargs).learn(200).learn(400, reset_num_timesteps=False)
    assert means(whole) == means(half)
    for one, other in zip(whole.policy.parameters(), half.policy.parameters(), strict=True):
        assert th.equal(one, other)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_logs_name_the_sources(algorithm: type[Any]) -> None:
    model = make(algorithm)
    logged: dict[str, Any] = {}

    class Recorder(Logger):
        def dump(self, step: int = 0) -> None:
            logged.update(self.name_to_value)
            super().dump(step)

    model.set_logger(Recorder(None, []))
    model.learn(400)
    shares = [logged[f"per_option/share/{name}"] for name in ("go_left", "go_right", "action_0", "action_1")]
    assert sum(shares) == pytest.approx(1)
    assert logged["options/source_share"] == pytest.approx(sum(shares[:2]))
    for behaviour in model.selector.evidence:
        assert f"reuse/gain/{behaviour.name}" in logged
        assert f"reuse/episodes/{behaviour.name}" in logged
    assert ("reuse/gain/learned" in logged) == (algorithm is PRQL)
    assert ("reuse/temperature" in logged) == (algorithm is PRQL)
    assert ("reuse/selection/go_left" in logged) == (algorithm is PRQL)
    assert ("reuse/upper_bound/go_left" in logged) == (algorithm is OPSTL)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_logs_are_called_after_the_algorithm(algorithm: type[Any], tmp_path: Path) -> None:
    make(algorithm, tensorboard_log=str(tmp_path)).learn(10)
    assert [folder.name for folder in tmp_path.iterdir()] == [f"{algorithm.__name__}_1"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reuse_probability": 1.5}, "reuse_probability must be a number from 0 to 1, not 1.5"),
        ({"reuse_decay": -0.1}, "reuse_decay must be a number from 0 to 1"),
        ({"source_policies": "go_left"}, "must be a list of source policies"),
    ],
)
def test_bad_arguments_are_refused(algorithm: type[Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(algorithm, **arguments)


@pytest.mark.parametrize("name", ["temperature", "temperature_growth"])
def test_a_negative_temperature_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a number of at least 0, not -1"):
        make(PRQL, **{name: -1})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_source_that_fails_is_named(algorithm: type[Any]) -> None:
    def wrong(observations: np.ndarray) -> np.ndarray:
        return np.full(len(observations), 7)

    with pytest.raises(ValueError, match="'wrong' returned an action out of range"):
        make(algorithm, source_policies=[wrong]).learn(10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_without_sources_it_is_dqn(algorithm: type[Any], n_envs: int) -> None:
    rates = {"exploration_initial_eps": 0.5, "exploration_final_eps": 0.1}
    ours = make(algorithm, n_envs, source_policies=None, **rates).learn(600)
    theirs = DQN("MlpPolicy", make_vec_env(Walk, n_envs), **SMALL, **rates).learn(600)  # type: ignore[arg-type]
    assert theirs._n_updates > 40
    for one, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert th.equal(one, other)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_arguments_may_be_changed_when_loading_and_between_runs(algorithm: type[Any], tmp_path: Path) -> None:
    model = make(algorithm, seed=None).learn(100)
    model.save(tmp_path / "model")
    name = "temperature" if algorithm is PRQL else "bandit_exploration"
    loaded = algorithm.load(tmp_path / "model", env=make_vec_env(Walk, 1), **{name: 0.3})
    assert getattr(loaded.selector, name) == 0.3
    setattr(loaded, name, 0.7)
    loaded.learn(20)
    assert getattr(loaded.selector, name) == 0.7
    # It draws from the model's own generator, not from a copy that was saved beside it
    assert loaded.selector.rng is loaded.rng


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_other_sources_begin_with_nothing_known(algorithm: type[Any], tmp_path: Path) -> None:
    make(algorithm).learn(200).save(tmp_path / "model")
    again = algorithm.load(tmp_path / "model", source_policies=[go_left, go_right])
    assert sum(counts(again)) > 0
    other = algorithm.load(tmp_path / "model", source_policies=[go_right, go_left])
    assert sum(counts(other)) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_good_source_speeds_learning_up(algorithm: type[Any]) -> None:
    kwargs: dict[str, Any] = {
        **SMALL,
        "learning_rate": 3e-3,
        "train_freq": 1,
        "target_update_interval": 40,
        "gamma": 0.9,
        "exploration_initial_eps": 0.1,
        "exploration_final_eps": 0.1,
    }
    # The way to the end takes nearly all of the steps, which ε-greedy steps alone do not find
    env = make_vec_env(Walk, 4, env_kwargs={"length": 13, "horizon": 14})
    models = [
        DQN("MlpPolicy", env, **kwargs),
        algorithm("MlpPolicy", env, source_policies=[go_left, go_right], **kwargs),
    ]
    arrivals, right = [], []
    for model in models:
        prefer(model, LEFT)
        model.learn(3000)
        arrivals.append(np.mean([episode["r"] for episode in model.ep_info_buffer]))
        right.append(model.predict(np.eye(13, dtype=np.float32)[:12], deterministic=True)[0].mean())
    assert arrivals[0] < 0.1
    assert arrivals[1] > 0.4
    assert right[1] > 0.8
