"""What functions return as source policies: what is understood, and what is said of the rest."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from stable_baselines3 import DQN
from stable_baselines3.dqn.policies import DQNPolicy

from sb3_caps import CAPS, PRQL, as_source, each
from sb3_caps.reuse.options import OptionSet
from tests.soak import times
from tests.toy_world import LENGTH, Corridor, go_left, go_right

N_ACTIONS = 3
BOX = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)


def acted(source: Any, observations: Any = None, space: spaces.Space = BOX) -> np.ndarray:
    """What an option set makes of a source, beside one that looks at observations after it."""
    options = OptionSet([as_source(source, name="tried"), go_left], space, spaces.Discrete(N_ACTIONS))
    observations = np.eye(LENGTH, dtype=np.float32) if observations is None else observations
    n_envs = len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
    actions, _ = options.actions(observations, options.initial_states(), np.ones(n_envs, dtype=bool))
    np.testing.assert_array_equal(actions[:, 1:], np.broadcast_to([0, 0, 1, 2], (n_envs, 4)))
    return actions[:, 0]


@pytest.mark.parametrize(
    "returned",
    [
        [1] * LENGTH,
        tuple([1] * LENGTH),
        np.ones(LENGTH, dtype=np.uint8),
        np.ones((LENGTH, 1), dtype=np.int32),
        th.ones(LENGTH, dtype=th.long),
        [th.tensor(1)] * LENGTH,
        [np.array(1)] * LENGTH,
    ],
)
def test_what_is_understood(returned: Any) -> None:
    assert acted(lambda observations: returned[: len(observations)]).tolist() == [1] * LENGTH


def test_two_environments_are_no_state() -> None:
    assert acted(lambda observations: (1, 2), np.eye(LENGTH, dtype=np.float32)[:2]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda observation: int(observation[LENGTH]), RuntimeError, r"'tried' failed: IndexError.*each\(function\)"),
        (lambda observation: int(observation.sum() > 3), ValueError, r"'tried' returned actions of shape \(\).*each\("),
        (lambda _: [[1], [1, 2]], ValueError, r"'tried' returned no batch of actions: .*inhomogeneous"),
        (lambda _: (np.ones(LENGTH), None), ValueError, r"'tried' returned.*tuple \(actions, state\).*pass the model"),
        (lambda _: (np.ones(LENGTH), (np.ones(2),)), ValueError, r"'tried' returned.*tuple \(actions, state\)"),
        (lambda o: th.ones(len(o), requires_grad=True), ValueError, "'tried' returned float32 actions"),
        (lambda _: [th.ones(1, requires_grad=True)], ValueError, "'tried' returned no batch of actions"),
        (each(lambda observation: observation["key"]), RuntimeError, "'tried' failed: IndexError"),
        (each(lambda observation: [1] * int(1 + observation[0])), RuntimeError, "'tried' failed: ValueError"),
    ],
)
def test_what_is_refused(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        acted(source)


def test_each_is_not_advised_where_it_is_used() -> None:
    with pytest.raises(RuntimeError, match="KeyError") as caught:
        acted(each(lambda observation: {"a": 0}["key"]))
    assert "each(" not in str(caught.value)


def test_predict_of_a_model_is_named() -> None:
    model = DQN("MlpPolicy", Corridor(), buffer_size=1)
    with pytest.raises(ValueError, match=r"'predict' returned.*tuple \(actions, state\).*pass the model itself"):
        CAPS("MlpPolicy", Corridor(), source_policies=[model.predict]).learn(5)


@pytest.mark.parametrize("sources", [{go_right, go_left}, th.nn.Sequential(th.nn.Linear(LENGTH, N_ACTIONS))])
def test_what_is_not_a_list_of_sources(sources: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)must be a list of source policies.*as_source\(policy, name=...\)"):
        CAPS("MlpPolicy", Corridor(), source_policies=sources)


class Shifted(gym.ObservationWrapper):
    """Places numbered from another number than 0."""

    def __init__(self, start: int, kind: str) -> None:
        super().__init__(Corridor("discrete"))
        self.start, self.kind = start, kind
        self.observation_space: spaces.Space = {
            "number": spaces.Discrete(LENGTH, start=start),
            "numbers": spaces.MultiDiscrete([LENGTH, 2], start=[start, 0]),
            "dict": spaces.Dict({"place": spaces.Discrete(LENGTH, start=start)}),
        }[kind]

    def observation(self, observation: Any) -> Any:
        place = np.int64(observation + self.start)
        return {"number": place, "numbers": np.array([place, 1]), "dict": {"place": place}}[self.kind]


def one_of_each(observations: Any) -> np.ndarray:
    return np.ones(len(observations["place"] if isinstance(observations, dict) else observations), dtype=int)


@pytest.mark.parametrize("algorithm", [CAPS, PRQL])
@pytest.mark.parametrize("kind", ["number", "numbers", "dict"])
@pytest.mark.parametrize("start", [-3, 5])
def test_numbers_that_do_not_start_at_zero(algorithm: type[Any], kind: str, start: int) -> None:
    policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
    with pytest.raises(ValueError, match=r"Observations must be numbered from 0, but .*: subtract its start"):
        algorithm(policy, Shifted(start, kind), source_policies=[])
    # The way out that the message names, and the same without a start
    wrapped = gym.wrappers.TransformObservation(Shifted(start, "number"), lambda o: o - start, spaces.Discrete(LENGTH))
    for env in (wrapped, Shifted(0, kind)):
        name = policy if env is not wrapped else "MlpPolicy"
        model = algorithm(name, env, source_policies=[one_of_each], learning_starts=5)
        assert model.learn(20).num_timesteps == 20


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(-1, 3), st.lists(st.integers(), max_size=2)), max_size=4),
    st.tuples(st.lists(st.integers(0, 2), max_size=3), st.none()),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=2),
    arrays.arrays(
        st.one_of(
            arrays.boolean_dtypes(), arrays.integer_dtypes(), arrays.floating_dtypes(), st.just(np.dtype(object))
        ),
        arrays.array_shapes(min_dims=0, max_dims=3, max_side=4),
    ),
    arrays.arrays(arrays.integer_dtypes(), st.just((3,)), elements=st.integers(0, 2)),
    st.lists(st.floats(-2, 4), max_size=4).map(lambda values: th.tensor(values, requires_grad=True)),
    st.lists(st.integers(-1, 3), max_size=4).map(lambda values: th.tensor(values, dtype=th.long)),
    st.sampled_from([KeyError("lost"), ZeroDivisionError(), AssertionError(), MemoryError(), StopIteration()]),
)
WORLDS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (2,), np.float32),
    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "number": spaces.Discrete(5),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float64), "b": spaces.Discrete(3)}),
}


def as_batch(space: spaces.Space, n_envs: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: as_batch(part, n_envs) for key, part in space.items()}
    return np.array([space.sample() for _ in range(n_envs)])


class Unruly:
    """A source that writes into what it sees, and returns or raises what it is given, of that as much as it sees."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, observations: Any) -> Any:
        parts = list(observations.values()) if isinstance(observations, dict) else [observations]
        for part in parts:
            part[...] = 7
        if isinstance(self.answer, Exception):
            raise self.answer
        is_batch = isinstance(self.answer, list) or getattr(self.answer, "ndim", 0) > 0
        return self.answer[: len(parts[0])] if is_batch else self.answer


def one_by_one(observations: Any) -> list[int]:
    return [1] * len(observations["a"] if isinstance(observations, dict) else observations)


MAPS: list[Callable[[Any], Any] | None] = [None, lambda anything: anything]


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return all(np.array_equal(first[key], second[key]) for key in second)
    return np.array_equal(first, second)


@settings(max_examples=times(150, 15_000), deadline=None)
@given(ANYTHING, st.sampled_from(list(WORLDS)), st.sampled_from(MAPS), st.sampled_from(MAPS))
def test_any_function_acts_or_is_refused_by_name(
    answer: Any, world: str, observation_map: Any, action_map: Any
) -> None:
    """Either its actions are taken as they are, or the error says whose they are; observations stay as they were."""
    observations, failure, actions = as_batch(WORLDS[world], 3), "", np.zeros((3, 5))
    before = copy.deepcopy(observations)
    source = as_source(Unruly(answer), observation_map=observation_map, action_map=action_map)
    try:
        options = OptionSet([source, one_by_one], WORLDS[world], spaces.Discrete(N_ACTIONS))
        actions, _ = options.actions(observations, options.initial_states(), np.ones(3, dtype=bool))
    except (ValueError, RuntimeError) as error:
        failure = str(error)
    if failure:
        assert failure.startswith("Source policy 'Unruly' ")
    else:
        returned = Unruly(answer)(copy.deepcopy(observations))
        answered = np.ravel(returned.tolist() if isinstance(returned, (np.ndarray, th.Tensor)) else returned)
        assert actions[:, 0].tolist() == answered.tolist()
        assert set(answered.tolist()) <= {0, 1, 2}
        assert actions[:, 1].tolist() == [1, 1, 1]
    assert same(observations, before)


@settings(max_examples=times(40, 4000), deadline=None)
@given(
    dtype=st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.int8]),
    shape=arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
    net_arch=st.lists(st.integers(1, 9), max_size=3),
    activation=st.sampled_from([th.nn.ReLU, th.nn.Tanh, th.nn.ELU, th.nn.Softplus]),
    n_envs=st.integers(1, 5),
    n_sources=st.integers(1, 3),
)
def test_any_network_acts_as_its_model(
    dtype: Any, shape: tuple[int, ...], net_arch: list[int], activation: Any, n_envs: int, n_sources: int
) -> None:
    space, actions = spaces.Box(0, 100, shape, dtype), spaces.Discrete(N_ACTIONS)
    arguments = {"net_arch": net_arch, "activation_fn": activation}
    policies = [DQNPolicy(space, actions, lambda _: 0.0, **arguments) for _ in range(n_sources)]
    options = OptionSet(policies, space, actions)
    observations = as_batch(space, n_envs)
    before = observations.copy()
    for _ in range(2):  # evaluated, and remembered
        taken, _ = options.actions(observations, options.initial_states(), np.ones(n_envs, dtype=bool))
        for i, policy in enumerate(policies):
            with th.no_grad():
                values = policy.q_net(policy.obs_to_tensor(observations)[0]).numpy()
            # Rounding may choose either of two that are alike
            np.testing.assert_allclose(values[np.arange(n_envs), taken[:, i]], values.max(axis=1), rtol=1e-4, atol=1e-4)
    assert same(observations, before)
