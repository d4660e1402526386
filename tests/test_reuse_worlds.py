"""The worlds of the reuse suite: as Gymnasium's where it has them, and by hand."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sb3_caps.studies.reuse import get_task, make_sources
from sb3_caps.studies.reuse.catalogue import key_and_door
from sb3_caps.studies.reuse.references import Alone, mean_return
from sb3_caps.studies.reuse.worlds import BatchedVecEnv
from sb3_caps.studies.reuse.worlds.classic import Acrobot, CartPole, MountainCar
from sb3_caps.studies.reuse.worlds.errands import SLIP, Errands, Maze, worst_actions
from sb3_caps.studies.reuse.worlds.minatar import MinAtar


@pytest.mark.parametrize(
    ("env_id", "world", "attributes"),
    [
        ("CartPole-v1", CartPole(15.0, 1.5, 4.0), {"gravity": 15.0, "length": 1.5, "force_mag": 4.0}),
        ("MountainCar-v0", MountainCar(0.0027, 0.0009), {"gravity": 0.0027, "force": 0.0009}),
        (
            "Acrobot-v1",
            Acrobot((1.0, 1.5), (1.0, 1.5)),
            {"LINK_LENGTH_2": 1.5, "LINK_MASS_2": 1.5, "LINK_COM_POS_2": 0.75},
        ),
    ],
)
def test_a_batched_world_moves_as_gymnasiums(env_id: str, world: Any, attributes: dict[str, float]) -> None:
    """Physics changed by attributes in Gymnasium's environment give the same states, rewards and ends."""
    env: Any = gym.make(env_id).unwrapped
    for name, value in attributes.items():
        setattr(env, name, value)
    if env_id == "CartPole-v1":
        env.polemass_length = env.masspole * env.length
    generator = np.random.default_rng(0)
    for _ in range(5):
        observation, _ = env.reset(seed=int(generator.integers(1000)))
        states = np.array([env.state], dtype=np.float64)
        np.testing.assert_allclose(world.observe(states)[0], observation, atol=1e-6)
        for _ in range(60):
            action = int(generator.integers(world.action_space.n))
            observation, reward, terminated, _, _ = env.step(action)
            states, rewards, ends = world.step(states, np.array([action]), generator)
            np.testing.assert_allclose(world.observe(states)[0], observation, atol=2e-3)
            assert (rewards[0], ends[0]) == (reward, terminated)
            if terminated:
                break
            states = np.array([env.state], dtype=np.float64)


def test_batched_env_ends_episodes_as_stable_baselines_does() -> None:
    """Truncation is told apart from termination, the last observation is kept, and a seed gives the same episodes."""
    env: Any = BatchedVecEnv(MountainCar(), 3, seed=1)
    env.seed(5)
    first = env.reset()
    env.step(np.array([0, 1, 2]))
    for _ in range(198):
        observations, _, dones, _ = env.step(np.array([1, 1, 1]))
        assert not dones.any()
    observations, rewards, dones, infos = env.step(np.array([1, 1, 1]))
    assert dones.all()
    assert rewards.tolist() == [-1.0] * 3
    assert all(info["TimeLimit.truncated"] for info in infos)
    assert not np.array_equal(infos[0]["terminal_observation"], observations[0])
    assert np.all((observations[:, 0] >= -0.6) & (observations[:, 0] <= -0.4))
    env.seed(5)
    np.testing.assert_array_equal(env.reset(), first)


def test_errands_by_hand() -> None:
    """A corridor K.D of three cells: from the middle to K and two steps to D, with slips, worked out by hand."""
    world = Errands("#####\n#K.D#\n#####", [("K", "D")], reward=10.0, cost=1.0)
    # One step succeeds with p = 0.9 + 0.1 / 4; up and down stay; the wrong way has 0.1 / 4
    p, wrong = 1 - SLIP + SLIP / 4, SLIP / 4
    stay = 1 - p - wrong
    # Undiscounted, with the key: from D's neighbour m and from K: v_m = -1 + 10 p + stay v_m + wrong v_K and
    # v_K = -1 + p v_m + (1 - p) v_K
    v_m, v_k = np.linalg.solve([[1 - stay, -wrong], [-p, p]], [10 * p - 1, -1])
    # Without it, from the middle: D has the key's worth of nothing, so it is one step back from there
    u_m, _ = np.linalg.solve([[1 - stay, -wrong], [-p, p]], [p * v_k - 1, -1])
    values = world.action_values(1.0)
    assert values[0, 1, 1].max() == pytest.approx(v_m)
    assert values[0, 0, 1].max() == pytest.approx(u_m) == pytest.approx(world.optimum(1.0))
    # Nothing is paid at D without the key, and the way to it is through K
    states, rewards, done = world.step(np.array([[1, 0, 0]]), np.array([3]), NeverSlips())
    assert (states[0].tolist(), rewards[0], done[0]) == ([2, 0, 0], -1.0, False)
    states, rewards, done = world.step(np.array([[1, 0, 1]]), np.array([3]), NeverSlips())
    assert (states[0].tolist(), rewards[0], done[0]) == ([2, 0, 1], 9.0, True)
    assert world.observe(np.array([[1, 0, 0], [1, 0, 1]])).tolist() == [
        [0, 1, 0, 0, 1, 1, 0],
        [0, 1, 0, 0, 0, 1, 0],
    ]


class NeverSlips(np.random.Generator):
    """A generator whose draws are never a slip."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def random(self, *args: Any, **kwargs: Any) -> Any:
        return np.ones(*args)


def test_planned_errands_are_what_episodes_bring() -> None:
    """The optimum is the mean return of the optimal policy, and no policy for one place comes near it."""
    world = key_and_door()
    task = get_task("key-door")
    env: Any = task.make_env(400, 0)
    optimal = make_sources(task, "best", Path(), [8])[0]
    assert mean_return(Alone(optimal), task, env, 2000) == pytest.approx(world.optimum(task.discount), abs=0.01)
    for source in make_sources(task, "helpful", Path(), [8]):
        assert mean_return(Alone(source), task, env, 400) < 0.1


def test_worst_actions() -> None:
    values = np.array([[1.0, 3.0, 2.0], [0.0, -1.0, 5.0]])
    assert worst_actions(values, 0).tolist() == [0, 1]
    many = worst_actions(np.tile(values[0], (500, 1)), 1)
    assert set(many.tolist()) == {0, 2}


def test_minatar_rules() -> None:
    pytest.importorskip("minatar")
    env, negated = MinAtar("breakout", sticky=0.0, horizon=50), MinAtar("breakout", sticky=0.0, sign=-1.0)
    env.reset(seed=0)
    negated.reset(seed=0)
    total = total_negated = 0.0
    over = False
    while not over:
        observation, reward, over, _, _ = env.step(np.int64(0))
        _, opposite, _, _, _ = negated.step(np.int64(0))
        total, total_negated = total + reward, total_negated + opposite
    # A lost game pays 1, bricks cost 1
    assert total_negated == 1.0 - total
    assert observation.shape == (400,)
    assert set(np.unique(observation)) <= {0, 1}


def test_a_maze_knows_where_moves_lead() -> None:
    maze = Maze("####\n#A.#\n#.##\n####")
    assert maze.n_cells == 3
    # Up, down, left, right from A: into walls it stays
    assert maze.successors[0].tolist() == [0, 2, 0, 1]
