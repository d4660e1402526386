"""Bad arguments that used to be taken: refused where they arrive, by name, with what to pass instead."""

from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_caps import CAPS, CUP, IBRL, ContinuousCAPS
from sb3_caps.caps.gate import OPTIONS
from sb3_caps.reuse.episodes import Behaviour
from tests.hand_walk import Stroll, stroll_left
from tests.toy_world import Corridor, go_left, go_right


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"safe": "False"}, "safe must be True or False, not 'False'"),
        ({"safe": 0}, "safe must be True or False, not 0"),
        ({"normalize_returns": "no"}, "normalize_returns must be True or False, not 'no'"),
        ({"optimize_memory_usage": "False"}, "optimize_memory_usage must be True or False, not 'False'"),
        *(
            ({name: value}, f"{name} must be a number .*, not {value}")
            for name, value in [
                ("gamma", 2.0),
                ("gamma", -0.1),
                ("tau", 2.0),
                ("exploration_initial_eps", 5.0),
                ("exploration_final_eps", -1.0),
                ("max_grad_norm", -1.0),
                ("gradient_steps", -2),
            ]
        ),
        # SB3 stops at the first step of a run
        ({"train_freq": 0}, "train_freq must be of at least 1 step or episode, not 0"),
        ({"train_freq": (-3, "episode")}, r"train_freq must be of at least 1 step or episode, not \(-3, 'episode'\)"),
        ({"exploration": "sometimes"}, "exploration must be one of .*'steps', 'terminations'.*'sometimes'"),
        # The groups of arguments
        ({"selection_kwargs": {"share": 0.1}}, "selection_kwargs must be a dict with some of survey_share.*'share'"),
        ({"selection_kwargs": {"survey_share": 1.5}}, r"\['survey_share'\] must be a number from 0 to 1, not 1.5"),
        ({"selection_kwargs": {"memory": 0}}, r"\['memory'\] must be a number from 0.01 to 1, not 0"),
        ({"selection_kwargs": {"actor": "no"}}, r"\['actor'\] must be True or False, not 'no'"),
        ({"actor_kwargs": {"rate": 0.1}}, "actor_kwargs must be a dict with some of learning_rate.*'rate'"),
        ({"actor_kwargs": {"clip_range": 1.5}}, r"\['clip_range'\] must be a number from 0 to 1, not 1.5"),
        ({"actor_kwargs": {"batch_size": 0}}, r"\['batch_size'\] must be .* at least 1, not 0"),
        # The replay buffer
        ({"replay_buffer_kwargs": {"frame_stack": 0}}, "frame_stack must be None or a whole number from 1, not 0"),
        ({"replay_buffer_kwargs": {"frame_stack": 1.5}}, "frame_stack must be .*, not 1.5"),
        ({"replay_buffer_kwargs": {"prioritized_share": "a"}}, "prioritized_share must be a share.*, not 'a'"),
        ({"learning_rate": np.inf}, "learning_rate must be .*, not inf"),
        ({"actor_kwargs": {"learning_rate": np.inf}}, r"actor_kwargs\['learning_rate'\] must be .*, not inf"),
        (
            {"termination_kwargs": {"learning_rate": np.inf}},
            r"termination_kwargs\['learning_rate'\] must be .*, not inf",
        ),
        # What CAPS passes on itself is not the user's
        *(
            ({"policy_kwargs": {name: value}}, f"policy_kwargs cannot hold '{name}'")
            for name, value in {
                "margin": 0.3,
                "termination": 0.3,
                "initial_termination": 0.3,
                "options": None,
                "gate": None,
                "actor_learning_rate": 0.1,
            }.items()
        ),
        ({"replay_buffer_kwargs": {"sequence_length": 3}}, "replay_buffer_kwargs cannot hold 'sequence_length'"),
        ({"replay_buffer_kwargs": {"n_sources": 3}}, "replay_buffer_kwargs cannot hold 'n_sources'"),
        ({"sequence_length": 2.5}, "sequence_length must be .*, not 2.5"),
        ({"exploration_schedule": 0.1}, "exploration_schedule must be .*, not 0.1"),
        ({"termination_kwargs": {"initial": "a"}}, r"termination_kwargs\['initial'\] must be one probability.*not a"),
        ({"termination_kwargs": {"target": "a"}}, r"termination_kwargs\['target'\] must be one probability.*not a"),
        ({"selection_kwargs": {"confidence": "no"}}, r"\['confidence'\] must be .*, not 'no'"),
        ({"actor_kwargs": {"window": 100.5}}, r"\['window'\] must be .*, not 100.5"),
        ({"actor_kwargs": {"n_epochs": 1.5}}, r"\['n_epochs'\] must be .*, not 1.5"),
    ],
)
def test_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CAPS("MlpPolicy", Corridor(), source_policies=[go_right], **kwargs)


@pytest.mark.parametrize("kind", ["box", "discrete"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_list_is_an_observation_as_in_dqn(kind: str, deterministic: bool) -> None:
    env = Corridor(kind)
    models = [
        algorithm("MlpPolicy", env, buffer_size=10, policy_kwargs={"net_arch": [8]}, seed=0)
        for algorithm in (DQN, CAPS)
    ]
    for model in models:
        model.exploration_rate = 0.0
    batch = [env.observation_space.sample() for _ in range(3)]
    as_lists = [np.asarray(each).tolist() for each in batch]
    for given, arrays in ((as_lists, np.array(batch)), (as_lists[0], np.array(batch[0]))):
        for model in models:
            expected, _ = model.predict(arrays, deterministic=True)
            actions, _ = model.predict(given, deterministic=deterministic)  # type: ignore[arg-type]
            assert actions.shape == np.shape(expected)
            np.testing.assert_array_equal(actions, expected)


@pytest.mark.parametrize("sources", [[], [go_right, go_left]])
def test_an_empty_batch_has_no_actions_as_in_dqn(sources: list[Any]) -> None:
    empty = np.zeros((0, 10), dtype=np.float32)
    assert DQN("MlpPolicy", Corridor(), buffer_size=10).predict(empty, deterministic=True)[0].shape == (0,)
    model = CAPS("MlpPolicy", Corridor(), source_policies=sources)
    for deterministic in (True, False):
        actions, state = model.predict(empty, deterministic=deterministic)
        assert actions.shape == (0,)
        assert model.predict(empty, state, np.zeros(0, dtype=bool), deterministic)[0].shape == (0,)


@pytest.mark.parametrize("algorithm", [ContinuousCAPS, IBRL, CUP])
@pytest.mark.parametrize("acts_by", [OPTIONS, Behaviour("stroll_left", is_source=True)])
def test_lists_and_empty_batches_for_continuous_actions(algorithm: type[Any], acts_by: Behaviour) -> None:
    model = algorithm("MlpPolicy", Stroll(), source_policies=[stroll_left], policy_kwargs={"net_arch": [8]})
    if algorithm is not CUP:
        model.gate.controller = acts_by
    cells = np.eye(5, dtype=np.float32)
    assert model.predict(cells[:0], deterministic=True)[0].shape == (0, 1)
    for batch in (cells, cells[0]):
        expected, given = (model.predict(each, deterministic=True)[0] for each in (batch, batch.tolist()))
        np.testing.assert_array_equal(given, expected)


class WithoutLastObservations(VecEnvWrapper):
    """As some vectorized environments are: they do not tell what an episode ended in."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)

    def reset(self) -> VecEnvObs:
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, dones, infos = self.venv.step_wait()
        for info in infos:
            info.pop("terminal_observation", None)
        return observations, rewards, dones, infos


@pytest.mark.parametrize("algorithm", [DQN, CAPS])
def test_environments_that_do_not_tell_what_an_episode_ended_in(algorithm: Any) -> None:
    """Terminal states and truncations: SB3 takes the first observation of the next episode."""
    env = WithoutLastObservations(DummyVecEnv([lambda: Corridor(horizon=6)] * 2))
    sources: dict[str, Any] = {} if algorithm is DQN else {"source_policies": [go_right, go_left]}
    model = algorithm("MlpPolicy", env, buffer_size=400, batch_size=32, seed=0, **sources).learn(300)
    assert model.num_timesteps >= 300
    assert model.replay_buffer.dones.any()
