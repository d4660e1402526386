"""
Random sequences of what people do with a model: learn, stop, press Ctrl-C, save and load, exchange environments, change
arguments. Each is held against a model to which the same was done and that was never saved.
"""

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_caps import CAPS, CUP, IBRL, OPSTL, PRQL, ContinuousCAPS, JumpStart, QDagger
from tests.hand_walk import LEFT, RIGHT, Stroll, Walk, stroll_left, stroll_right
from tests.soak import times

RELATIVES: list[type[Any]] = [PRQL, OPSTL, JumpStart, QDagger]
CONTINUOUS: list[type[Any]] = [ContinuousCAPS, CUP, IBRL]
CELLS = np.eye(5, dtype=np.float32)
N_ENVS = 2
# Arguments that may change while a model lives
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "gamma": st.sampled_from([0.5, 0.9, 0.99, 1.0]),
    "batch_size": st.sampled_from([8, 16]),
    "gradient_steps": st.sampled_from([1, 2]),
    "tau": st.sampled_from([0.5, 1.0]),
    "target_update_interval": st.sampled_from([1, 30]),
    "learning_starts": st.sampled_from([0, 20]),
}
OF_CAPS: dict[str, st.SearchStrategy[Any]] = {"safe": st.booleans(), "normalize_returns": st.booleans()}
STEPS = st.integers(1, 60)


def always(action: int) -> DQN:
    """A saved model that always does the same: functions cannot be exported."""
    model = DQN("MlpPolicy", Walk(), buffer_size=1, policy_kwargs={"net_arch": [4]})
    last = model.q_net.q_net[-1]
    assert isinstance(last, th.nn.Linear)
    with th.no_grad():
        last.bias[action] += 100.0
    return model


SOURCES = {"left": always(LEFT), "right": always(RIGHT)}


def made(env: VecEnv, algorithm: type[Any], **kwargs: Any) -> Any:
    arguments: dict[str, Any] = {"source_policies": SOURCES, "policy_kwargs": {"net_arch": [8]}}
    arguments |= {"buffer_size": 300, "batch_size": 8, "learning_starts": 10, "train_freq": 2, "seed": 0}
    if algorithm in CONTINUOUS:
        # A gradient step of SAC takes three times as long
        arguments |= {"source_policies": [stroll_left, stroll_right], "train_freq": 8}
    if algorithm in (JumpStart, QDagger):
        arguments |= {"trial_episodes": 1, "average_episodes": 2}
    return algorithm("MlpPolicy", env, device="cpu", **(arguments | kwargs))


def environments(algorithm: type[Any], horizon: int = 12) -> VecEnv:
    # Nothing is random in it: a model that was loaded seeds its environments again
    world = Stroll if algorithm in CONTINUOUS else Walk
    return DummyVecEnv([lambda: world(horizon=horizon)] * N_ENVS)


def seed(number: int) -> None:
    """What SB3's own replay buffer and SAC draw from; all else draws from the model's own generator."""
    np.random.seed(number)
    th.manual_seed(number)


def ended(after: int, end: Callable[[], bool]) -> ConvertCallback:
    """A callback that ends a run after so many steps."""
    n_calls = 0

    def step(*_: Any) -> bool:
        nonlocal n_calls
        n_calls += 1
        return n_calls < after or end()

    return ConvertCallback(step)


def interrupt() -> bool:
    raise KeyboardInterrupt


class Pair:
    """A model that is saved and loaded now and then, and one that is not."""

    def __init__(self, algorithm: type[Any], folder: Path, **kwargs: Any) -> None:
        self.algorithm, self.folder = algorithm, folder
        self.model, self.other = (made(environments(algorithm), algorithm, **kwargs) for _ in range(2))
        self.n_done = 0

    def both(self, act: Callable[[Any], Any]) -> None:
        for model in (self.model, self.other):
            seed(self.n_done)
            act(model)
        self.n_done += 1
        self.compare()

    def learn(self, steps: int, reset: bool) -> None:
        self.both(lambda model: model.learn(steps, reset_num_timesteps=reset))

    def stop(self, after: int, reset: bool) -> None:
        callbacks = lambda: ended(after, lambda: False)  # noqa: E731
        self.both(lambda model: model.learn(400, callback=callbacks(), reset_num_timesteps=reset))

    def interrupt(self, after: int, reset: bool) -> None:
        def learn(model: Any) -> None:
            with pytest.raises(KeyboardInterrupt):
                model.learn(400, callback=ended(after, interrupt), reset_num_timesteps=reset)

        self.both(learn)

    def reload(self, steps: int, **changed: Any) -> None:
        """Loading resets the environments."""
        env = self.model.get_env()
        self.model.save(self.folder / "model")
        self.model.save_replay_buffer(self.folder / "buffer")
        self.model = self.algorithm.load(self.folder / "model", env=env, device="cpu", **changed)
        self.model.load_replay_buffer(self.folder / "buffer")
        self.other.set_env(self.other.get_env())
        vars(self.other).update(changed)
        self.learn(steps, reset=False)

    def change(self, steps: int, **changed: Any) -> None:
        for model in (self.model, self.other):
            vars(model).update(changed)
        self.learn(steps, reset=False)

    def exchange(self, horizon: int) -> None:
        for model in (self.model, self.other):
            model.set_env(environments(self.algorithm, horizon))

    def export(self) -> None:
        """Which changes nothing, and acts as the model does."""
        self.model.export(self.folder / "export")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = CAPS.load(self.folder / "export.npz", device="cpu", trust=False)
        np.testing.assert_array_equal(
            found.predict(CELLS, deterministic=True)[0], self.model.predict(CELLS, deterministic=True)[0]
        )
        self.compare()

    def compare(self) -> None:
        model, other = self.model, self.other
        assert model.num_timesteps == other.num_timesteps
        assert model._n_updates == other._n_updates
        assert model.rng.bit_generator.state == other.rng.bit_generator.state
        for key, value in model.policy.state_dict().items():
            assert th.equal(value, other.policy.state_dict()[key]), key
        mine, theirs = model.replay_buffer, other.replay_buffer
        assert (mine.size(), mine.pos, mine.full) == (theirs.size(), theirs.pos, theirs.full)
        for name in ("observations", "next_observations", "actions", "rewards", "dones"):
            parts = [np.asarray(getattr(each, name))[: each.size()] for each in (mine, theirs)]
            np.testing.assert_array_equal(parts[0], parts[1], err_msg=name)
        if self.algorithm in CONTINUOUS:
            # What followed the step of before is that of the row which is to be written next
            rows = [each.answers.before[: each.size()] for each in (mine, theirs)]
            np.testing.assert_array_equal(rows[0], rows[1])
        known = [
            {getattr(by, "name", by): each.state() for by, each in getattr(of, "evidence", {}).items()}
            for of in (getattr(each, "selector", None) for each in (model, other))
        ]
        assert known[0] == known[1]
        assert getattr(model, "gate", None) == getattr(other, "gate", None)
        acted = [each.predict(CELLS, deterministic=True)[0] for each in (model, other)]
        np.testing.assert_array_equal(acted[0], acted[1])


OPERATIONS = st.one_of(
    st.tuples(st.just("learn"), STEPS, st.booleans()),
    st.tuples(st.just("stop"), STEPS, st.booleans()),
    st.tuples(st.just("interrupt"), STEPS, st.booleans()),
    st.tuples(st.just("reload"), STEPS),
    st.tuples(st.just("exchange"), st.integers(3, 15)),
    st.tuples(st.just("export")),
    *(
        st.tuples(st.sampled_from(["change", "reload"]), STEPS, st.just(name), values)
        for name, values in (CHANGES | OF_CAPS).items()
    ),
)
# A thousand of each with `make soak`
SEQUENCES = settings(
    max_examples=times(10, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@SEQUENCES
@given(
    algorithm=st.sampled_from([CAPS] * 4 + RELATIVES + [ContinuousCAPS] + CONTINUOUS),
    sequence=st.lists(OPERATIONS, min_size=2, max_size=8),
)
@example(algorithm=CAPS, sequence=[("stop", 9, True), ("reload", 30, "safe", False), ("export",), ("learn", 5, False)])
@example(
    algorithm=ContinuousCAPS,
    sequence=[("stop", 9, True), ("reload", 50, "gamma", 0.5), ("reload", 20, "safe", False), ("learn", 9, False)],
)
@example(
    algorithm=CAPS,
    sequence=[("interrupt", 30, True), ("exchange", 4), ("reload", 60, "gamma", 0.5), ("learn", 3, True)],
)
def test_what_was_saved_and_loaded_goes_on_as_what_was_not(
    algorithm: type[Any], sequence: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    pair = Pair(algorithm, tmp_path)
    for name, *arguments in sequence:
        changed = dict([arguments[1:]]) if name in ("change", "reload") and len(arguments) > 1 else {}
        if algorithm is not CAPS and name == "export":
            continue
        if not changed.keys() <= set(inspect.signature(algorithm).parameters) | CHANGES.keys():
            continue
        getattr(pair, name)(*(arguments[:1] if changed else arguments), **changed)


def constant(_: float) -> float:
    return 0.3


# With nothing that depends on how long a run is going to be: QDagger's teacher has a share of it
ENDLESS: list[tuple[type[Any], dict[str, Any]]] = [
    (CAPS, {"safe": False}),
    (CAPS, {"selection_kwargs": {"survey_share": 0.0}}),
    (PRQL, {}),
    (OPSTL, {}),
    (JumpStart, {}),
    (ContinuousCAPS, {"selection_kwargs": {"survey_share": 0.0}}),
    (CUP, {}),
    (IBRL, {}),
]


@SEQUENCES
@given(which=st.sampled_from(ENDLESS), parts=st.lists(st.integers(1, 15), min_size=2, max_size=6))
@example(which=ENDLESS[1], parts=[1, 20, 3, 50, 26])
@example(which=ENDLESS[2], parts=[1, 20, 3, 50, 26])
@example(which=ENDLESS[5], parts=[1, 20, 3, 50, 26])
def test_a_run_in_parts_is_the_run_that_never_stopped(
    which: tuple[type[Any], dict[str, Any]], parts: list[int], tmp_path: Path
) -> None:
    algorithm, arguments = which
    if algorithm not in CONTINUOUS:
        arguments = arguments | {"exploration_schedule": constant}
    pair = Pair(algorithm, tmp_path, **arguments)
    # Whole rounds of collecting and training
    round_steps = pair.model.train_freq.frequency * N_ENVS
    seed(0)
    pair.other.learn(sum(parts) * round_steps)
    seed(0)
    for part in parts:
        pair.model.learn(part * round_steps, reset_num_timesteps=False)
    pair.compare()
