"""Monster Kong as environments: one game, many games, what they show, and the optimal source policies."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as check_gymnasium
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import DQN
from stable_baselines3.common.env_checker import check_env as check_sb3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

import sb3_caps.envs  # noqa: F401  registers the environments
from sb3_caps.envs.monster_kong import TASKS
from sb3_caps.envs.monster_kong.drawing import LUMA, painter
from sb3_caps.envs.monster_kong.env import MonsterKongEnv
from sb3_caps.envs.monster_kong.level import GOALS, SETTINGS
from sb3_caps.envs.monster_kong.observations import OBSERVATIONS, FeatureObserver, observer
from sb3_caps.envs.monster_kong.planner import UNREACHABLE, plan
from sb3_caps.envs.monster_kong.sources import PictureIndex, optimal_policy
from sb3_caps.envs.monster_kong.sprites import POSES
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv

ROOM = """
########
#......#
#......#
#D...^P#
########
"""


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("name", ["MonsterKong", *TASKS])
def test_registered_tasks_pass_both_checkers(name: str, observation: str) -> None:
    env = gym.make(f"sb3_caps/{name}-v0", observation=observation, render_mode="rgb_array")
    check_gymnasium(env.unwrapped)
    check_sb3(env)
    if name in TASKS:
        assert (env.get_wrapper_attr("setting"), env.get_wrapper_attr("goal")) == TASKS[name]


def test_the_papers_targets_have_names() -> None:
    assert TASKS["MonsterKongG1"] == ("a", "princess")
    assert TASKS["MonsterKongG2"] == ("b", "gem")


def test_importing_the_environments_does_not_import_pygame() -> None:
    code = "import sys, sb3_caps.envs; sys.exit('pygame' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def play(env: MonsterKongEnv, seed: int, actions: list[int]) -> list[Any]:
    observation, _ = env.reset(seed=seed)
    run: list[Any] = [observation.tobytes()]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        run.append((observation.tobytes(), reward, terminated, truncated, info))
        if terminated or truncated:
            observation, _ = env.reset()
            run.append(observation.tobytes())
    return run


@settings(max_examples=25, deadline=None)
@given(
    setting=st.sampled_from(SETTINGS),
    observation=st.sampled_from(OBSERVATIONS),
    seed=st.integers(0, 2**31),
    actions=st.lists(st.integers(0, 5), max_size=80),
)
def test_same_seed_and_actions_give_the_same_run(setting: str, observation: str, seed: int, actions: list[int]) -> None:
    first = MonsterKongEnv(setting, "coin", observation, horizon=30)
    again = MonsterKongEnv(setting, "coin", observation, horizon=30)
    run = play(first, seed, actions)
    assert run == play(again, seed, actions)
    assert run == play(first, seed, actions)


@settings(max_examples=12, deadline=None)
@given(
    setting=st.sampled_from(SETTINGS),
    goal=st.sampled_from(list(GOALS)),
    observation=st.sampled_from(OBSERVATIONS),
    seed=st.integers(0, 2**31),
)
def test_batch_equals_single_games_step_by_step(setting: str, goal: str, observation: str, seed: int) -> None:
    n_envs, horizon = 7, 60
    batch = MonsterKongVecEnv(n_envs, setting, goal, observation, horizon)
    singles = DummyVecEnv([lambda: MonsterKongEnv(setting, goal, observation, horizon) for _ in range(n_envs)])
    batch.seed(seed)
    singles.seed(seed)
    observed, expected = batch.reset(), singles.reset()
    np.testing.assert_array_equal(observed, expected)
    generator = np.random.default_rng(seed)
    for _ in range(130):
        # Two thirds of the steps are optimal, so that goals are among the ends of episodes.
        random = generator.integers(6, size=n_envs)
        actions = np.where(generator.random(n_envs) < 0.67, batch.optimal_actions(), random)
        assert batch.env_method("optimal_action") == singles.env_method("optimal_action")
        observed, rewards, dones, infos = batch.step(actions)
        expected, expected_rewards, expected_dones, expected_infos = singles.step(actions)
        np.testing.assert_array_equal(observed, expected)
        np.testing.assert_array_equal(rewards, expected_rewards)
        np.testing.assert_array_equal(dones, expected_dones)
        for index in np.flatnonzero(dones):
            assert infos[index]["TimeLimit.truncated"] == expected_infos[index]["TimeLimit.truncated"]
            assert infos[index]["is_success"] == expected_infos[index]["is_success"]
            np.testing.assert_array_equal(
                infos[index]["terminal_observation"], expected_infos[index]["terminal_observation"]
            )


def test_batch_behaves_like_a_vec_env() -> None:
    batch = MonsterKongVecEnv(3, ROOM, "princess", "features", render_mode="rgb_array")
    batch.seed(5)
    first = batch.reset()
    assert isinstance(first, np.ndarray)
    batch.seed(5)
    np.testing.assert_array_equal(first, batch.reset())
    assert batch.get_attr("goal") == ["princess"] * 3
    assert batch.get_attr("state", indices=[2]) == [batch.states[2]]
    assert batch.env_is_wrapped(gym.Wrapper) == [False] * 3
    assert [image.shape for image in batch.get_images() if image is not None] == [(75, 120, 3)] * 3
    batch.set_options({"start": (3, 3)})
    batch.reset()
    assert len(set(batch.states.tolist())) == 1
    np.testing.assert_array_equal(batch.states, [batch.get_attr("table")[0].start_at(3, 3)] * 3)
    with pytest.raises(NotImplementedError, match="make another batch"):
        batch.set_attr("goal", "diamond")


def test_observations_of_a_batch_are_not_overwritten_by_later_steps() -> None:
    for observation in OBSERVATIONS:
        batch = MonsterKongVecEnv(4, "a", "coin", observation)
        batch.seed(0)
        first = batch.reset()
        assert isinstance(first, np.ndarray)
        copy = first.copy()
        for _ in range(5):
            batch.step(np.full(4, 3))
        np.testing.assert_array_equal(first, copy)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_dqn_trains_on_a_batch(observation: str) -> None:
    env = VecMonitor(MonsterKongVecEnv(8, "a", "princess", observation, horizon=20))
    policy = "CnnPolicy" if observation == "pixels" else "MlpPolicy"
    model = DQN(policy, env, buffer_size=500, learning_starts=80, train_freq=1, batch_size=4, seed=0)
    model.learn(240)
    assert model.num_timesteps == 240
    assert len(model.ep_info_buffer or ()) >= 8
    observations = env.reset()
    assert isinstance(observations, np.ndarray)
    actions, _ = model.predict(observations)
    assert actions.shape == (8,)


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize(("setting", "goal"), [("a", "princess"), ("b", "gem"), ("b", "princess")])
def test_optimal_policies_take_the_fewest_steps(setting: str, goal: str, observation: str) -> None:
    policy = pickle.loads(pickle.dumps(optimal_policy(setting, goal, observation)))
    batch = MonsterKongVecEnv(100, setting, goal, observation)
    batch.seed(1)
    observations = batch.reset()
    fewest = batch.get_attr("plan", indices=0)[0].steps[batch.states]
    steps, done = np.zeros(100, dtype=int), np.zeros(100, dtype=bool)
    for step in range(1, fewest.max() + 1):
        assert isinstance(observations, np.ndarray)
        observations, rewards, dones, _ = batch.step(policy(observations))
        steps[dones & ~done & (rewards == 1)] = step
        done |= dones
    np.testing.assert_array_equal(steps, fewest)


def test_features_tell_every_state_apart() -> None:
    for setting in SETTINGS:
        features = observer(setting, "features")
        assert isinstance(features, FeatureObserver)
        states = np.arange(len(features.table))
        np.testing.assert_array_equal(features.identify(features.many(states, states)), states)


def test_optimal_policies_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValueError, match=r"Expected a batch of observations of shape \(84, 84, 2\)"):
        optimal_policy("a", "coin", "pixels")(np.zeros((84, 84, 2), dtype=np.uint8))
    known, _ = MonsterKongEnv("a", "coin", "pixels").reset(seed=0)
    with pytest.raises(ValueError, match="Observation 1 of the batch does not show two pictures"):
        optimal_policy("a", "coin", "pixels")(np.stack([known, np.zeros_like(known)]))
    with pytest.raises(ValueError, match="no state of this map"):
        optimal_policy("a", "coin", "features")(np.full((1, 21), 0.123, dtype=np.float32))


def test_a_policy_for_a_map_file_can_be_loaded_without_the_file(tmp_path: Path) -> None:
    path = tmp_path / "room.txt"
    path.write_text(ROOM)
    saved = pickle.dumps(optimal_policy(path, "princess", "features"))
    path.unlink()
    env = MonsterKongEnv(ROOM, "princess", "features")
    observation, _ = env.reset(options={"start": (2, 3)})
    assert pickle.loads(saved)(observation[None]) == [env.optimal_action()]


def scaled_down(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Without the border, in gray, each pixel the mean of its area: 84 copies of each pixel fall into whole blocks."""
    gray = picture[15:-15, 15:-15].astype(np.float64) @ LUMA
    for _ in range(2):
        gray = np.repeat(gray, 84, axis=0).reshape(84, -1, gray.shape[1]).mean(axis=1).T
    return gray


# Rounding to whole gray levels is the only difference.
PIXEL_TOLERANCE = 0.5 + 1e-6


@settings(max_examples=25, deadline=None)
@given(setting=st.sampled_from([*SETTINGS, ROOM]), previous=st.integers(0, 10**6), state=st.integers(0, 10**6))
def test_pixels_equal_the_full_picture_scaled_down(setting: str, previous: int, state: int) -> None:
    artist, pixels = painter(setting), observer(setting, "pixels")
    previous, state = previous % len(artist.table), state % len(artist.table)
    image = pixels.one(previous, state)
    assert np.abs(image[:, :, 0] - scaled_down(artist.full(previous))).max() <= PIXEL_TOLERANCE
    assert np.abs(image[:, :, 1] - scaled_down(artist.full(state))).max() <= PIXEL_TOLERANCE
    np.testing.assert_array_equal(image[None], pixels.many(np.array([previous]), np.array([state])))


@pytest.mark.parametrize("setting", SETTINGS)
def test_figures_can_be_told_apart_in_small_gray_pictures(setting: str) -> None:
    artist = painter(setting)
    level, height, width = artist.level, *artist.background.shape
    patches = {}
    for name, (row, column) in level.objects.items():
        top = round((row - 1) * height / (level.shape[0] - 2))
        left = round((column - 1) * width / (level.shape[1] - 2))
        patches[name] = artist.background[top : top + 3, left : left + 3].astype(int)
    names = list(patches)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            assert np.abs(patches[name] - patches[other]).max() >= 30
    # The agent stands out from whatever is behind it, in every place and pose.
    window = np.arange(artist.patch_size)
    behind = artist.background[
        artist.rows[:, None, None] + window[:, None], artist.columns[:, None, None] + window
    ].astype(int)
    bare = artist.table.touches == 0
    looks = np.unique(artist.look[bare & ~artist.table.spiked])
    assert np.abs(artist.patches - behind).max(axis=(1, 2))[looks].min() >= 60


def test_every_pose_is_drawn() -> None:
    assert set(painter("a").poses.tolist()) == set(range(len(POSES)))


def test_start_reward_and_end() -> None:
    env = MonsterKongEnv(ROOM, "diamond", "features")
    env.reset(options={"start": (3, 3)})
    results = [env.step(2) for _ in range(4)]  # walk left
    assert [result[1] for result in results] == [0, 0, 0, 1]
    assert [result[2] for result in results] == [False, False, False, True]
    assert results[-1][4] == {"is_success": True}
    env.reset(options={"start": (3, 3)})
    results = [env.step(3) for _ in range(4)]  # walk right, into the spike
    assert results[-1][1:] == (0.0, True, False, {"is_success": False})
    for seed in range(50):
        env.reset(seed=seed)
        assert env.table.on_bricks[env.state]
        assert not env.table.reached("diamond")[env.state]


def test_horizon_truncates() -> None:
    env = MonsterKongEnv(ROOM, "diamond", "features")
    env.reset(options={"start": (4, 3)})
    for _ in range(1199):
        assert not any(env.step(5)[2:4])
    assert env.step(5)[2:] == (False, True, {"is_success": False})


def test_goal_at_the_horizon_is_a_termination() -> None:
    env = MonsterKongEnv(ROOM, "diamond", "features", horizon=4)
    env.reset(options={"start": (3, 3)})
    assert [env.step(2)[1:4] for _ in range(4)][-1] == (1.0, True, False)


def test_single_game_evaluates_with_sb3() -> None:
    class Optimal:
        def __init__(self) -> None:
            self.policy = optimal_policy("b", "gem", "features")

        def predict(self, observation: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
            return self.policy(observation), None

    batch = VecMonitor(MonsterKongVecEnv(4, "b", "gem", "features"))
    mean, _ = evaluate_policy(Optimal(), batch, n_eval_episodes=12)
    assert mean == 1.0


def test_render_modes(capsys: pytest.CaptureFixture[str]) -> None:
    env = MonsterKongEnv("a", "coin", "features", render_mode="human")
    env.reset(seed=0)
    env.step(3)
    assert env.render() is None
    env.close()
    env.close()
    picture = MonsterKongEnv("a", "coin", "features", render_mode="rgb_array")
    with pytest.raises(ResetNeeded):
        picture.render()
    picture.reset(seed=0)
    frame = picture.render()
    assert frame is not None
    assert frame.shape == (465, 495, 3)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"setting": "c"}, "is not one of"),
        ({"goal": "crown"}, "'crown' is not on map 'a'"),
        ({"observation": "ram"}, "Unknown observation 'ram'"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"render_mode": "ascii"}, "Unknown render_mode 'ascii'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MonsterKongEnv(**kwargs)
    with pytest.raises(ValueError, match=message):
        MonsterKongVecEnv(2, **kwargs)


def test_wrong_calls_are_refused() -> None:
    env = MonsterKongEnv(ROOM, "diamond", "features")
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(ValueError, match="No start at column 0, row 0"):
        env.reset(options={"start": (0, 0)})
    with pytest.raises(ValueError, match="touches the goal"):
        env.reset(options={"start": (1, 3)})
    with pytest.raises(ValueError, match=r"Unknown options \['begin'\]"):
        env.reset(options={"begin": (1, 3)})
    env.reset(options={"start": (3, 3)})
    for action in (6, -1, 2.5, None):
        with pytest.raises(ValueError, match="out of range"):
            env.step(action)  # type: ignore[arg-type]
    while not env.step(2)[2]:
        pass
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_wrong_calls_of_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="n_envs"):
        MonsterKongVecEnv(0)
    with pytest.raises(ValueError, match="no window"):
        MonsterKongVecEnv(2, render_mode="human")
    batch = MonsterKongVecEnv(2, ROOM, "diamond", "features")
    with pytest.raises(RuntimeError, match="reset"):
        batch.step(np.array([0, 0]))
    batch.reset()
    for actions in ([0], [[0, 0]], [0.0, 1.0]):
        with pytest.raises(ValueError, match="Expected 2 integer actions"):
            batch.step(np.array(actions))
    with pytest.raises(ValueError, match="out of range"):
        batch.step(np.array([0, 6]))


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_two_pictures_leave_open_hardly_ever_matters(setting: str) -> None:
    index = PictureIndex(painter(setting))
    pair, state = index.members.T
    for goal in GOALS:
        solution = plan(setting, goal)
        open_ended = (solution.steps[state] > 0) & (solution.steps[state] < UNREACHABLE)
        optimal = solution.optimal[state, index.actions(solution)[pair]]
        assert optimal[open_ended].mean() > 0.999
