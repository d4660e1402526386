"""Source policies: each kind of thing that acts."""

import copy
import gc
import pickle
import warnings
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_caps import CAPS, OPSTL, PRQL, as_source, each
from sb3_caps.reuse.options import OptionSet
from tests.paper import paper
from tests.toy_world import LENGTH, RIGHT, Corridor, MaskableCorridor, go_left, go_right, positions

OBSERVATIONS = np.eye(LENGTH, dtype=np.float32)
NO_STARTS = np.zeros(LENGTH, dtype=bool)


def acts_like(source: Any, model: Any) -> bool:
    actions, _ = as_source(source).actions(OBSERVATIONS, None, NO_STARTS)
    return np.array_equal(actions, model.predict(OBSERVATIONS, deterministic=True)[0])


def options_of(*sources: Any) -> OptionSet:
    env = Corridor()
    return OptionSet(sources, env.observation_space, env.action_space)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", [DQN, PPO, A2C, QRDQN])
def test_algorithm_policy_and_file(algorithm: type[Any], tmp_path: Path) -> None:
    model = algorithm("MlpPolicy", Corridor(), seed=2)
    model.save(tmp_path / "goal_a")
    assert acts_like(model, model)
    assert acts_like(model.policy, model)
    assert acts_like(tmp_path / "goal_a.zip", model)
    assert acts_like(str(tmp_path / "goal_a"), model)
    names = options_of(model, str(tmp_path / "goal_a"), model.policy).source_names
    assert names[:2] == [algorithm.__name__.lower(), "goal_a"]


ON_POLICY: dict[str, Any] = {"n_steps": 8, "batch_size": 8}
OURS: dict[str, Any] = {"source_policies": [go_right, go_left], "learning_starts": 10, "buffer_size": 100}
TRAINED: list[tuple[type[Any], str, dict[str, Any]]] = [
    (DQN, "MlpPolicy", {"learning_starts": 10, "buffer_size": 100}),
    (PPO, "MlpPolicy", ON_POLICY),
    (A2C, "MlpPolicy", {}),
    (QRDQN, "MlpPolicy", {"learning_starts": 10, "buffer_size": 100}),
    (TRPO, "MlpPolicy", ON_POLICY),
    (ARS, "MlpPolicy", {"n_delta": 2, "policy_kwargs": {"net_arch": [8]}}),
    (ARS, "LinearPolicy", {"n_delta": 2}),
    (RecurrentPPO, "MlpLstmPolicy", {**ON_POLICY, "policy_kwargs": {"lstm_hidden_size": 8}}),
    (MaskablePPO, "MlpPolicy", ON_POLICY),
    (CAPS, "MlpPolicy", OURS),
    (PRQL, "MlpPolicy", OURS),
    (OPSTL, "MlpPolicy", OURS),
]


def same_walk(source: Any, model: Any, steps: int = 30) -> bool:
    """Whether a source acts as its model does, along episodes with what recurrent ones remember."""
    rng, source = np.random.default_rng(0), as_source(source)
    state, expected_state, same = None, None, []
    for step in range(steps):
        observations = OBSERVATIONS[rng.integers(LENGTH, size=4)]
        starts = np.full(4, True) if step == 0 else rng.random(4) < 0.1
        actions, state = source.actions(observations, state, starts)
        expected, expected_state = model.predict(observations, expected_state, starts, deterministic=True)
        same.append(np.array_equal(actions, expected))
    return all(same)


@pytest.mark.filterwarnings("ignore:Source policy .* takes action masks")
@pytest.mark.parametrize(("algorithm", "policy", "arguments"), TRAINED)
def test_every_trained_model(algorithm: type[Any], policy: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    model = algorithm(policy, MaskableCorridor(), seed=1, **arguments)
    model.learn(60)
    model.save(tmp_path / "model")
    for source in (model, model.policy, tmp_path / "model"):
        assert same_walk(source, model)
    caps = CAPS("MlpPolicy", MaskableCorridor(), source_policies=[model, model.policy], seed=0)
    assert caps.learn(20).num_timesteps == 20
    # The model is as it was: it can be trained on
    assert model.learn(20) is model


def test_a_copy_keeps_what_was_changed_after_construction() -> None:
    model: Any = PPO("MlpPolicy", Corridor(), seed=0, n_steps=8, batch_size=8)
    model.policy.action_net = th.nn.Sequential(model.policy.action_net, th.nn.Linear(3, 3))
    model.policy.last_pass = model.policy.action_net(th.ones(1, 64))
    source = as_source(model)
    assert acts_like(source, model)
    assert source.policy is not None
    kept: Any = source.policy.last_pass
    assert th.equal(kept, model.policy.last_pass)
    assert not kept.requires_grad
    assert model.policy.last_pass.grad_fn is not None


@pytest.mark.filterwarnings("ignore:Source policy .* takes action masks")
def test_maskable_ppo(tmp_path: Path) -> None:
    model = MaskablePPO("MlpPolicy", MaskableCorridor(), seed=0)
    model.save(tmp_path / "masked")
    assert acts_like(model, model)
    assert acts_like(tmp_path / "masked", model)


def test_recurrent_source_remembers_each_environment_on_its_own(tmp_path: Path) -> None:
    model = RecurrentPPO("MlpLstmPolicy", Corridor(), seed=0, n_steps=8, policy_kwargs={"lstm_hidden_size": 8})
    model.save(tmp_path / "recurrent")
    rng = np.random.default_rng(0)
    for source in (as_source(model), as_source(tmp_path / "recurrent")):
        state, expected_state = None, None
        for step in range(6):
            observations = OBSERVATIONS[rng.integers(LENGTH, size=4)]
            starts = np.array([step == 0, step in (0, 3), step == 0, step == 0])
            actions, state = source.actions(observations, state, starts)
            expected, expected_state = model.predict(observations, expected_state, starts, deterministic=True)
            np.testing.assert_array_equal(actions, expected)
        assert state is not None
        assert expected_state is not None
        np.testing.assert_allclose(state[0], expected_state[0])


def test_recurrent_source_sees_every_observation_in_training() -> None:
    source = RecurrentPPO("MlpLstmPolicy", Corridor(), seed=0, n_steps=8, policy_kwargs={"lstm_hidden_size": 8})
    reused = [as_source(source, deterministic=True)]
    model = CAPS("MlpPolicy", make_vec_env(Corridor, n_envs=2, seed=0), source_policies=reused, seed=0)
    model.learn(60)
    buffer, state = model.replay_buffer, None
    for row in range(30):
        starts = buffer.dones[row - 1] if row else np.ones(2, dtype=bool)
        actions, state = source.predict(buffer.stores[None].data[row], state, starts, deterministic=True)
        agrees = buffer.agreements[row, :, 0]
        np.testing.assert_array_equal(agrees, actions == buffer.actions[row])


def test_callables_and_import_strings() -> None:
    options = options_of(go_right, lambda observations: go_left(observations), "tests.toy_world:go_left")
    actions, _ = options.actions(OBSERVATIONS, options.initial_states(), NO_STARTS)
    assert actions[0].tolist() == [1, 0, 0, 0, 1, 2]
    assert options.names == ["go_right", "<lambda>", "go_left", "action_0", "action_1", "action_2"]


def test_each() -> None:
    source = as_source(each(lambda observation: int(observation.argmax()) % 3), name="modulo")
    assert source.actions(OBSERVATIONS, None, NO_STARTS)[0].tolist() == [i % 3 for i in range(LENGTH)]
    by_dict = each(lambda observation: int(observation["vector"].argmax()) % 3)
    assert by_dict({"vector": OBSERVATIONS, "other": OBSERVATIONS}).tolist() == [i % 3 for i in range(LENGTH)]


def test_maps_fit_a_source_of_other_spaces() -> None:
    model = DQN("MlpPolicy", Corridor("discrete"), seed=0)
    source = as_source(model, observation_map=positions, action_map=lambda actions: 2 - actions)
    options = options_of(source)
    actions, _ = options.actions(OBSERVATIONS, options.initial_states(), NO_STARTS)
    np.testing.assert_array_equal(actions[:, 0], 2 - model.predict(np.arange(LENGTH), deterministic=True)[0])


def test_names_are_made_unique() -> None:
    options = options_of(go_right, go_right, as_source(go_right, name="best"), go_right)
    assert options.source_names == ["go_right", "go_right_2", "best", "go_right_3"]


def test_sources_are_not_trained_and_keep_nothing_alive() -> None:
    env = DummyVecEnv([lambda: Corridor()])
    model = DQN("MlpPolicy", env, seed=0, buffer_size=1000, learning_starts=10)
    alive: list[weakref.ref[Any]] = [weakref.ref(model), weakref.ref(model.replay_buffer), weakref.ref(env.envs[0])]
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    caps = CAPS("MlpPolicy", Corridor(), source_policies=[model], learning_starts=10, seed=0)
    caps.learn(300)
    policy = caps.options.sources[0].policy
    assert policy is not None
    assert all(th.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert not any(parameter.requires_grad for parameter in policy.parameters())
    # Training the user's own model on does not change the source either
    model.learn(300)
    assert all(th.equal(value, before[name]) for name, value in policy.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.q_net.parameters())
    del model, env
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3
    assert len(pickle.dumps(caps.options)) < 200_000


@pytest.mark.parametrize(
    "arguments",
    [
        paper(policy_kwargs={"execution": "interrupting"}, termination_kwargs={"initial": 0.1, "regularization": 0.0}),
        paper(policy_kwargs={"execution": "interrupting"}, termination_kwargs={"initial": 0.1, "regularization": 0.5}),
        paper(termination=0.6),
        paper(policy_kwargs={"averaging": 0.05}, termination_kwargs={"initial": 0.9}),
        {"safe": False},
        {},
    ],
)
def test_a_saved_caps_model_keeps_how_it_acts(arguments: dict[str, Any], tmp_path: Path) -> None:
    env = make_vec_env(Corridor, n_envs=2, seed=0)
    arguments = {"source_policies": [go_right, go_left], "seed": 3, "learning_starts": 10, **arguments}
    model: Any = CAPS("MlpPolicy", env, **arguments).learn(50)
    # Values that differ from state to state, and from their average
    th.nn.init.normal_(model.q_net.q_net[-1].weight)
    model.save(tmp_path / "model")
    for source in (model, tmp_path / "model"):
        assert same_walk(source, model, steps=100)


def test_a_caps_model_is_a_source_too(tmp_path: Path) -> None:
    first = CAPS("MlpPolicy", Corridor(), source_policies=[go_right], seed=0)
    first.save(tmp_path / "first")
    for given in (first, tmp_path / "first"):
        second = CAPS("MlpPolicy", Corridor(), source_policies=[given, go_left], seed=0)
        second.learn(150)
        assert second.options.n_sources == 2
        assert acts_like(given, first)


class SeesEmitted:
    """A source that remembers what it was shown."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, observations: Any) -> np.ndarray:
        self.seen.append(observations)
        return np.full(len(observations), RIGHT)


def test_sources_see_images_as_the_environment_emits_them() -> None:
    source = SeesEmitted()
    env = Corridor("image")
    model = CAPS("CnnPolicy", env, source_policies=[source], seed=0, buffer_size=100)
    model.learn(5)
    assert model.observation_space.shape == (2, 36, 36)
    assert {observations.shape for observations in source.seen} == {(1, 36, 36, 2)}
    observation, _ = env.reset(seed=0)
    model.predict(observation)  # as a user does it
    model.predict(np.moveaxis(observation, -1, 0))  # as an evaluation environment of SB3 does it
    for seen in source.seen[-2:]:
        np.testing.assert_array_equal(seen[0], observation)


def test_sources_see_original_observations_under_vec_normalize(tmp_path: Path) -> None:
    source = SeesEmitted()
    venv = make_vec_env(Corridor, n_envs=2, seed=0)
    env = VecNormalize(venv)
    model = CAPS("MlpPolicy", env, source_policies=[source], seed=0)
    model.learn(300)
    # But for what truncated episodes ended in: VecNormalize gives those normalized, and clips what is rare
    n_inexact = sum(set(np.unique(observations)) != {0.0, 1.0} for observations in source.seen)
    assert n_inexact <= np.count_nonzero(model.replay_buffer.timeouts)
    # The learner saw something else
    assert isinstance(model._last_obs, np.ndarray)
    assert not np.array_equal(model._last_obs, source.seen[-1])
    often_seen = OBSERVATIONS[:3]  # VecNormalize clips what is rare, and that cannot be undone
    model.predict(env.normalize_obs(often_seen))
    np.testing.assert_allclose(source.seen[-1], often_seen, atol=1e-4)
    # ... also in a loaded model that has no environment, as rl_zoo3's enjoy uses it
    model.save(tmp_path / "model")
    loaded = CAPS.load(tmp_path / "model")
    loaded.predict(env.normalize_obs(often_seen))
    loaded_source = loaded.options.sources[0].act.function  # type: ignore[attr-defined]
    np.testing.assert_allclose(loaded_source.seen[-1], often_seen, atol=1e-4)


def test_predict_follows_the_scale_of_a_new_environment(tmp_path: Path) -> None:
    source = SeesEmitted()
    plain, often_seen = make_vec_env(Corridor, n_envs=2, seed=0), OBSERVATIONS[:3]
    env = VecNormalize(make_vec_env(Corridor, n_envs=2, seed=0))
    model = CAPS("MlpPolicy", env, source_policies=[source], seed=0)
    model.learn(300)
    model.save(tmp_path / "model")
    for _ in range(2):
        model.set_env(plain)
        model.predict(often_seen)
        np.testing.assert_array_equal(source.seen[-1], often_seen)
        model.set_env(env)
        model.predict(env.normalize_obs(often_seen))
        np.testing.assert_allclose(source.seen[-1], often_seen, atol=1e-4)
    loaded = CAPS.load(tmp_path / "model", env=plain)
    loaded.predict(often_seen)
    loaded_source: Any = loaded.source_policies[0].act
    np.testing.assert_array_equal(loaded_source.function.seen[-1], often_seen)


def test_source_policies_are_an_attribute(tmp_path: Path) -> None:
    dqn = DQN("MlpPolicy", Corridor(), seed=0, buffer_size=10)
    for algorithm in (CAPS, PRQL):
        model = algorithm("MlpPolicy", Corridor(), source_policies=[go_right, dqn, go_right], seed=0)
        assert [source.name for source in model.source_policies] == ["go_right", "dqn", "go_right_2"]
        # As other arguments, they can be passed on and are there after loading
        again = algorithm("MlpPolicy", Corridor(), source_policies=model.source_policies)
        assert again.options.names == model.options.names
        model.save(tmp_path / "model")
        assert [source.name for source in algorithm.load(tmp_path / "model").source_policies] == model.source_names
    assert CAPS("MlpPolicy", Corridor()).source_policies == ()


def spoil(observations: Any) -> np.ndarray:
    for part in observations.values() if isinstance(observations, dict) else [observations]:
        part[...] = 0
    return go_right(observations)


@pytest.mark.parametrize("kind", ["box", "image", "dict"])
@pytest.mark.parametrize("mapped", [False, True])
def test_what_a_source_writes_into_its_observations_stays_its_own(kind: str, mapped: bool) -> None:
    shown, seen = SeesEmitted(), SeesEmitted()
    if mapped:
        writer = as_source(go_right, observation_map=lambda observations: [spoil(observations), observations][1])
    else:
        writer = as_source(spoil)
    policy = {"box": "MlpPolicy", "image": "CnnPolicy", "dict": "MultiInputPolicy"}[kind]
    env = make_vec_env(lambda: Corridor(kind), n_envs=2, seed=0)
    model = CAPS(policy, env, source_policies=[shown, writer, seen], seed=0, buffer_size=100, sequence_length=1)
    model.learn(20)
    observations: Any = env.reset()
    before = copy.deepcopy(observations)
    model.predict(observations)
    for key in before if kind == "dict" else [None]:
        ours, theirs = (each if key is None else each[key] for each in (observations, before))
        np.testing.assert_array_equal(ours, theirs)
        for first, second in zip(shown.seen, seen.seen, strict=True):
            first, second = (each if key is None else each[key] for each in (first, second))
            np.testing.assert_array_equal(first, second)
            assert first.any()
    if kind == "box":
        assert model.replay_buffer.sample(8).observations.any(dim=1).all()  # type: ignore[union-attr]


def test_torch_functions_can_use_their_observations_without_a_warning() -> None:
    def by_torch(observations: np.ndarray) -> th.Tensor:
        return th.as_tensor(observations).argmax(dim=1) % 3

    model = CAPS("CnnPolicy", Corridor("image"), source_policies=[go_right], seed=0, buffer_size=100)
    options = options_of(by_torch, as_source(DQN("MlpPolicy", Corridor(), buffer_size=1), action_map=lambda a: a))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frozen = OBSERVATIONS.copy()
        frozen.flags.writeable = False
        actions, _ = options.actions(frozen, options.initial_states(), NO_STARTS)
        model.learn(5)
    assert actions[:, 0].tolist() == [i % 3 for i in range(LENGTH)]


def test_image_sources_of_either_layout() -> None:
    model = DQN("CnnPolicy", Corridor("image"), seed=0, buffer_size=10)
    for kind in ("image", "image_first"):
        env = Corridor(kind)
        caps = CAPS("CnnPolicy", env, source_policies=[model], seed=0, buffer_size=100)
        caps.learn(10)
        observation, _ = env.reset(seed=1)
        emitted = np.asarray(observation)[None]
        actions, _ = caps.options.actions(emitted, (None,), np.zeros(1, dtype=bool))
        assert actions[0, 0] == model.predict(observation, deterministic=True)[0]


def test_gymnasium_ids_work_as_everywhere() -> None:
    model = CAPS("MlpPolicy", "CartPole-v1", source_policies=[lambda o: (o[:, 2] > 0).astype(int)], seed=0)
    model.learn(50)
    assert isinstance(model.action_space, spaces.Discrete)
    assert isinstance(gym.make("CartPole-v1").observation_space, spaces.Box)


@pytest.mark.parametrize("algorithm", [CAPS, PRQL])
def test_a_misspelt_argument_is_told_which_one_was_meant(algorithm: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"{algorithm.__name__} has no argument sources: did you mean source_policies\?"
    ):
        algorithm("MlpPolicy", Corridor(), sources=[go_right])

    class WithItsOwn(algorithm):
        def __init__(self, *args: Any, speed: int = 1, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.speed = speed

    assert WithItsOwn("MlpPolicy", Corridor(), speed=2).speed == 2


def test_sources_of_a_model_cannot_be_appended_to() -> None:
    model: Any = CAPS("MlpPolicy", Corridor(), source_policies={"right": go_right})
    assert [source.name for source in model.source_policies] == ["right"]
    with pytest.raises(AttributeError):
        model.source_policies.append(go_right)
    with pytest.raises(AttributeError):
        model.source_policies = [go_right]
