"""NaN and unknown arguments: refused where they arrive, and nothing is spoilt by them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_caps import CAPS, OPSTL, PRQL, JumpStart, PiecewiseLinear, QDagger
from tests.hand_walk import Walk, go_left, go_right

ALGORITHMS = [CAPS, PRQL, OPSTL, JumpStart, QDagger]
SMALL: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}, "buffer_size": 2000, "seed": 3, "device": "cpu"}


class Faulty(Walk):
    """
    A walk that goes wrong.

    :param when: the number of the step, over all episodes
    :param what: ``"reward"``, ``"observation"``, or ``"reset"`` for the observation that an episode starts with
    :param value: what it then gives
    :param as_dict: observe a Dict
    """

    def __init__(self, when: int = 10**9, what: str = "reward", value: float = np.nan, as_dict: bool = False) -> None:
        super().__init__()
        self.when, self.what, self.value, self.as_dict = when, what, value, as_dict
        self.count = 0
        if as_dict:
            self.observation_space: Any = spaces.Dict({"cell": self.observation_space})

    def _spoilt(self, observation: np.ndarray, spoil: bool) -> Any:
        if spoil:
            observation = observation.copy()
            observation[2] = self.value
        return {"cell": observation} if self.as_dict else observation

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**kwargs)
        return self._spoilt(observation, self.what == "reset" and self.count >= self.when), info

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        now = self.count == self.when
        reward = self.value if now and self.what == "reward" else reward
        return self._spoilt(observation, now and self.what == "observation"), reward, terminated, truncated, info


def make(algorithm: type[Any], *faults: dict[str, Any], **kwargs: Any) -> Any:
    """A model with one environment for each of the faults."""
    made = iter(faults or ({},))
    env = make_vec_env(lambda: Faulty(**next(made)), len(faults) or 1)
    kwargs = {"source_policies": [go_left, go_right], **SMALL, **kwargs}
    return algorithm("MlpPolicy", env, **kwargs)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("what", ["reward", "observation"])
def test_a_step_that_is_not_finite_ends_the_run(algorithm: type[Any], what: str, value: float, tmp_path: Path) -> None:
    model = make(algorithm, {}, {"when": 100, "what": what, "value": value}, learning_starts=20, train_freq=1)
    with pytest.raises(ValueError, match=f"The (last )?{what} of environment 1 is {value} in step 200.*can be saved"):
        model.learn(1000)
    # The steps before it are there, and it is not
    assert model.replay_buffer.size() == 99
    assert np.isfinite(model.replay_buffer.rewards).all()
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())
    model.save(tmp_path / "model")
    algorithm.load(tmp_path / "model", env=make_vec_env(Walk, 2)).learn(200, reset_num_timesteps=False)


def test_the_first_observation_of_a_run_is_looked_at() -> None:
    model = make(PRQL, {}, {}, {"what": "reset", "when": 0})
    with pytest.raises(ValueError, match="The observation of environment 2 is nan in step 0"):
        model.learn(100)
    assert model.replay_buffer.size() == 0


def test_the_last_observation_of_an_episode_is_looked_at() -> None:
    # Four steps to the right end an episode, and the fourth shows nothing but an observation that is replaced
    model = make(OPSTL, {}, {"what": "observation", "when": 4}, source_policies=[go_right], reuse_decay=1.0)
    with pytest.raises(ValueError, match="The last observation of environment 1 is nan in step 8"):
        model.learn(100)


def test_parts_of_a_dict_are_named() -> None:
    env = make_vec_env(lambda: Faulty(when=5, what="observation", as_dict=True), 1)
    with pytest.raises(ValueError, match="The observation 'cell' of environment 0 is nan in step 5"):
        CAPS("MultiInputPolicy", env, **SMALL).learn(100)


def test_the_environments_own_numbers_are_looked_at() -> None:
    # Normalised and clipped, it would be a reward of 10
    env = VecNormalize(make_vec_env(lambda: Faulty(when=30, value=np.inf), 1))
    with pytest.raises(ValueError, match="The reward of environment 0 is inf in step 30"):
        PRQL("MlpPolicy", env, **SMALL).learn(100)


def test_the_environment_is_named_when_another_one_ends_an_episode() -> None:
    """Statistics that took an infinite number in make NaN of the last observation that the other one has."""
    faulty = Faulty(when=2, what="observation", value=np.inf)
    env = VecNormalize(DummyVecEnv([lambda: Walk(horizon=2), lambda: faulty]))
    with pytest.raises(ValueError, match="The observation of environment 1 is inf in step 4"):
        CAPS("MlpPolicy", env, **SMALL).learn(100)


NUMBERS = [
    "buffer_size",
    "learning_starts",
    "batch_size",
    "tau",
    "gamma",
    "gradient_steps",
    "target_update_interval",
    "exploration_fraction",
    "exploration_initial_eps",
    "exploration_final_eps",
    "max_grad_norm",
]
OWN = {
    CAPS: [
        "sequence_length",
        "termination",
        "termination_kwargs.learning_rate",
        "termination_kwargs.regularization",
        "policy_kwargs.averaging",
        "actor_kwargs.learning_rate",
        "actor_kwargs.softness",
        "selection_kwargs.survey_share",
        "selection_kwargs.disable_errors",
    ],
    PRQL: ["reuse_probability", "reuse_decay", "temperature", "temperature_growth"],
    OPSTL: ["reuse_probability", "reuse_decay", "bandit_exploration"],
    JumpStart: ["trial_episodes", "average_episodes", "curriculum_stages", "tolerance"],
    QDagger: ["trial_episodes", "average_episodes", "teacher_fraction", "temperature"],
}
EVERY_NUMBER = [(algorithm, name) for algorithm in ALGORITHMS for name in NUMBERS + OWN[algorithm]]
WITH_SCHEDULES = [(algorithm, "learning_rate") for algorithm in ALGORITHMS] + [
    (CAPS, "termination_kwargs.target"),
    (CAPS, "termination_kwargs.initial"),
]


def with_one(name: str, value: Any) -> dict[str, Any]:
    """The arguments of a small model, one of them changed; a dot stands between a group and what is in it."""
    group, _, part = name.rpartition(".")
    if not group:
        return {**SMALL, name: value}
    return {**SMALL, group: {**SMALL.get(group, {}), part: value}}


@pytest.mark.parametrize(("algorithm", "name"), EVERY_NUMBER + WITH_SCHEDULES)
def test_nan_is_refused(algorithm: type[Any], name: str) -> None:
    group, _, part = name.rpartition(".")
    message = f"{group} must be a number, not .*'{part}': nan" if group else f"{name} must be.* not nan"
    with pytest.raises(ValueError, match=message):
        make(algorithm, **with_one(name, float("nan")))


@pytest.mark.parametrize(
    "arguments",
    [
        {"termination_kwargs": {"initial": (0.5, np.nan)}},
        {"policy_kwargs": {"optimizer_kwargs": {"eps": np.nan}}},
    ],
)
def test_nan_inside_an_argument_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be a number, not .*nan"):
        make(CAPS, **{**SMALL, **arguments})


@pytest.mark.parametrize(("algorithm", "name"), EVERY_NUMBER)
@pytest.mark.parametrize("schedule", [LinearSchedule(1.0, 0.5, 0.5), PiecewiseLinear([(0, 1.0)])])
def test_a_schedule_is_refused_where_a_number_is_meant(algorithm: type[Any], name: str, schedule: Any) -> None:
    part = name.rpartition(".")[2]
    message = f"{name} must be a number, not (Linear|Piecewise)"
    if part != name:
        message = rf"\['{part}'\] must be a number .*, not (Linear|Piecewise)"
    if part == "averaging":
        message = "averaging must be None or a share .*, not (Linear|Piecewise)"
    with pytest.raises(ValueError, match=message):
        make(algorithm, **with_one(name, schedule))


@pytest.mark.parametrize(("algorithm", "name"), WITH_SCHEDULES[:-1])
def test_a_schedule_is_fine_where_it_is_meant(algorithm: type[Any], name: str) -> None:
    make(algorithm, **with_one(name, LinearSchedule(0.5, 0.4, 0.5)))
    with pytest.raises(ValueError, match="finite numbers"):
        make(algorithm, **with_one(name, PiecewiseLinear([(0, 0.5), (10, np.nan)])))


def test_text_is_no_number() -> None:
    with pytest.raises(ValueError, match=r"gamma must be a number, not '0.9'"):
        make(PRQL, gamma="0.9")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_buffer_holds_a_batch(algorithm: type[Any]) -> None:
    # Enough to look at a model, as rl_zoo3 does, but not to train it
    model = make(algorithm, {}, {}, **{**SMALL, "buffer_size": 1, "batch_size": 32})
    with pytest.raises(ValueError, match=r"buffer_size must be at least 32, to hold a batch of 32 transitions.*not 1"):
        model.learn(100)
    make(algorithm, {}, {}, **{**SMALL, "buffer_size": 32, "batch_size": 32, "learning_starts": 10}).learn(60)
    with pytest.raises(ValueError, match="buffer_size must be at least 9"):
        make(algorithm, *[{}] * 9, **{**SMALL, "buffer_size": 8, "batch_size": 8}).learn(100)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_misspelt_keyword_of_load_is_refused(algorithm: type[Any], tmp_path: Path) -> None:
    make(algorithm, gamma=0.9).save(tmp_path / "model")
    with pytest.raises(TypeError, match=f"{algorithm.__name__} has no argument gama: did you mean gamma"):
        algorithm.load(tmp_path / "model", gama=0.8)
    with pytest.raises(TypeError, match="has no argument nonsense"):
        algorithm.load(tmp_path / "model", nonsense=0.8)
    loaded = algorithm.load(tmp_path / "model", gamma=0.8, exploration_schedule=LinearSchedule(0.5, 0.1, 0.5))
    assert loaded.gamma == 0.8
    with pytest.raises(ValueError, match="gamma must be a number, not nan"):
        algorithm.load(tmp_path / "model", gamma=float("nan"))


def test_a_state_of_another_number_of_environments_is_refused() -> None:
    model = make(CAPS)
    observations = np.eye(5, dtype=np.float32)
    _, state = model.predict(observations[:2])
    with pytest.raises(ValueError, match="state is that of 2 environments, but there are observations of 3"):
        model.predict(observations[:3], state)
    with pytest.raises(ValueError, match="state is that of 2 environments, but there are observations of 1"):
        model.predict(observations[0], state)
    with pytest.raises(ValueError, match="episode_start is that of 2 environments, but there are observations of 3"):
        model.predict(observations[:3], None, np.ones(2, dtype=bool))
    model.predict(observations[:2], state, np.zeros(2, dtype=bool))
