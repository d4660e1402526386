"""What is told of a source when a model is made, and what is not yet."""

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.policies import ActorCriticPolicy

from sb3_caps import CAPS, as_source
from sb3_caps.sources import trial
from sb3_caps.sources.trial import sampled, try_source
from tests.toy_world import LENGTH, Corridor, go_right

VECTORS = spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
ACTIONS = spaces.Discrete(3)


def tried(source: Any, space: spaces.Space = VECTORS, **arguments: Any) -> None:
    try_source(as_source(source, **arguments), space, ACTIONS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            lambda observations: 1,
            r"'<lambda>' returned actions of shape \(\): expected 2 integers.* pass each\(function",
        ),
        (lambda observations: [1], r"'<lambda>' returned actions of shape \(1,\): expected 2"),
        (lambda observations: [0.5, 1.0], "'<lambda>' returned float64 actions"),
        (lambda observations: np.zeros((len(observations), 3)), r"returned actions of shape \(2, 3\)"),
        (lambda observations: ([1, 1], None), r"returned no batch of actions: they are a tuple \(actions, state\)"),
    ],
)
def test_wrong_forms_are_told_when_the_model_is_made(source: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CAPS("MlpPolicy", Corridor(), source_policies=[go_right, source])


def test_what_a_function_does_with_nonsense_is_its_own_business() -> None:
    def knows_the_corridor(observations: np.ndarray) -> np.ndarray:
        if not np.isin(observations, (0.0, 1.0)).all():
            raise KeyError("no such place")
        return go_right(observations)

    def lost(observations: np.ndarray) -> np.ndarray:
        return np.where(np.isin(observations, (0.0, 1.0)).all(axis=1), 1, -1)

    model = CAPS("MlpPolicy", Corridor(), source_policies=[knows_the_corridor, lost], seed=0)
    assert model.learn(20).num_timesteps == 20
    # Through a model that asks them, too
    outer = CAPS("MlpPolicy", Corridor(), source_policies=[model], seed=0)
    assert outer.learn(20).num_timesteps == 20


def test_what_a_network_cannot_do_is_told() -> None:
    class Broken(ActorCriticPolicy):
        def _predict(self, observation: Any, deterministic: bool = False) -> th.Tensor:
            raise NotImplementedError("not yet")

    policy = Broken(VECTORS, ACTIONS, lambda _: 0.0)
    with pytest.raises(RuntimeError, match="Source policy 'Broken' failed: NotImplementedError: not yet"):
        tried(policy)
    # Whose failure it is, is not known with a map in between
    tried(policy, observation_map=lambda observations: observations)


class Counts:
    """A source that remembers."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        self.calls += 1
        return go_right(observations)


def test_what_a_source_remembers_stays_as_it_is() -> None:
    source, calls = Counts(), []

    def remembers(observations: np.ndarray) -> np.ndarray:
        calls.append(len(observations))
        return go_right(observations)

    network = DQN("MlpPolicy", Corridor(), buffer_size=1)
    before = np.random.get_state()[1].copy(), th.get_rng_state()  # type: ignore[index]
    space = Corridor().observation_space
    space.seed(5)
    for each in (source, remembers, network):
        tried(each, space)
    assert (source.calls, calls) == (0, [])
    np.testing.assert_array_equal(np.random.get_state()[1], before[0])  # type: ignore[index]
    assert th.equal(th.get_rng_state(), before[1])
    # The space goes on with its own random numbers
    expected = Corridor().observation_space
    expected.seed(5)
    np.testing.assert_array_equal(space.sample(), expected.sample())


class CannotBeSaved:
    """A source with a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        with self.lock:
            return go_right(observations)


def test_what_cannot_be_saved_is_told_at_once(tmp_path: Any) -> None:
    source = CannotBeSaved()
    with pytest.warns(
        UserWarning, match=r"'CannotBeSaved' cannot be pickled .*lock.* so the model cannot be saved as it"
    ):
        model = CAPS("MlpPolicy", Corridor(), source_policies=[source, go_right], seed=0)
    assert model.learn(20).num_timesteps == 20
    with pytest.raises(ValueError, match=r"'CannotBeSaved' cannot be pickled .* so nothing was saved"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    # By an import string or a map of a model it is the same
    with pytest.warns(UserWarning, match="'dqn' cannot be pickled"):
        tried(DQN("MlpPolicy", Corridor(), buffer_size=1), name="dqn", action_map=CannotBeSaved())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tried(lambda observations: go_right(observations))


def test_what_takes_a_whole_buffer_with_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MOST_BYTES", 2**20)
    large, calls = np.zeros(2**18), []

    def takes_it_along(observations: np.ndarray) -> np.ndarray:
        calls.append(len(observations))
        return go_right(observations) + int(large[0])

    with pytest.warns(UserWarning, match="'takes_it_along' takes more than 1 MB in each saved model"):
        tried(takes_it_along)
    # It is tried as it is
    assert calls == [2]


SPACES: list[spaces.Space] = [
    VECTORS,
    spaces.Box(-np.inf, np.inf, (3,), np.float64),
    spaces.Box(-3e38, 3e38, (3,), np.float32),
    spaces.Box(100.0, 200.0, (3,), np.float32),
    spaces.Box(0, 255, (8, 8, 3), np.uint8),
    spaces.Discrete(7),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiBinary(4),
    spaces.Dict({"a": VECTORS, "b": spaces.Discrete(3)}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_of_every_space_of_sb3(space: spaces.Space) -> None:
    found: Any = sampled(space, 5)
    again: Any = sampled(space, 5)
    for key in space.keys() if isinstance(space, spaces.Dict) else [None]:
        part: Any = space if key is None else space[key]  # type: ignore[index]
        values: Any = found if key is None else found[key]
        assert values.shape == (5, *part.shape)
        assert values.dtype == part.dtype
        assert all(part.contains(each) for each in values)
        np.testing.assert_array_equal(values, again if key is None else again[key])
        if isinstance(part, spaces.Box) and part.low.min() < -1e6:
            assert np.abs(values).max() <= 10.0


def test_other_spaces_are_left_to_sb3() -> None:
    assert sampled(spaces.Text(3), 2) is None
    assert sampled(spaces.Dict({"a": VECTORS, "b": spaces.Tuple([VECTORS])}), 2) is None
    tried(lambda observations: 1, spaces.Text(3))
