"""The adapter of the real PLE; without the package ``ple`` only its error message can be tested."""

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as check_gymnasium
from stable_baselines3.common.env_checker import check_env as check_sb3
from stable_baselines3.common.vec_env import DummyVecEnv

import sb3_caps.envs  # noqa: F401  registers the environments
from sb3_caps.envs.monster_kong.level import Level
from sb3_caps.envs.monster_kong.physics import ACTIONS, TILE, UNITS, Body, step
from sb3_caps.envs.ple import GAMES, PLEEnv, preprocess
from tests.stand_in_ple import Catch, StandInPLE

# Its code uses a name that NumPy has removed.
PLAYABLE = [game for game in GAMES if game != "RaycastMaze"]
installed = importlib.util.find_spec("ple") is not None
needs_ple = pytest.mark.skipif(not installed, reason="ple is not installed")


@pytest.mark.skipif(installed, reason="ple is installed")
def test_without_ple_the_error_says_how_to_install_it() -> None:
    with pytest.raises(ImportError, match=r"git clone .*PyGame-Learning-Environment && pip install -e"):
        PLEEnv("Pong")
    assert "sb3_caps/PLE-Pong-v0" not in gym.registry


@needs_ple
@pytest.mark.parametrize("game", PLAYABLE)
def test_games_pass_both_checkers(game: str) -> None:
    env = gym.make(f"sb3_caps/PLE-{game}-v0", render_mode="rgb_array")
    check_gymnasium(env.unwrapped)
    check_sb3(env)


@pytest.mark.parametrize("make", [Catch, lambda **kwargs: Catch(**kwargs)])
def test_a_game_of_ones_own(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setattr("sb3_caps.envs.ple._import_ple", lambda: (StandInPLE, None))
    env = PLEEnv(make, "state", game_kwargs={"width": 20}, horizon=30, render_mode="rgb_array")
    check_sb3(env)
    assert env.game in ("Catch", "<lambda>")
    assert env.action_meanings == ["left", "right", "no-op"]
    assert PLEEnv(make, game_kwargs={"width": 20}).observation_space.shape == (10, 20, 3)
    run = play(env, 3, 60)
    assert run == play(env, 3, 60)
    assert run != play(env, 4, 60)
    assert {step[1] for step in run if isinstance(step, tuple)} == {0.0, 1.0}


def test_what_makes_no_game_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setattr("sb3_caps.envs.ple._import_ple", lambda: (StandInPLE, None))
    with pytest.raises(ValueError, match=r"dict does not make a game of PLE: \{\} has no actions, rewards"):
        PLEEnv(dict)
    # An object cannot be made anew at every seed
    with pytest.raises(ValueError, match="the class of a game, or a function that makes one"):
        PLEEnv(Catch())  # type: ignore[arg-type]


@needs_ple
def test_a_class_of_ples_own_is_the_game_by_its_name() -> None:
    from ple.games.catcher import Catcher

    assert play(PLEEnv(Catcher, game_kwargs={"width": 64, "height": 64}), 2) == play(PLEEnv("Catcher"), 2)


def play(env: gym.Env[Any, Any], seed: int, steps: int = 120) -> list[Any]:
    assert isinstance(env.action_space, gym.spaces.Discrete)
    generator = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    run: list[Any] = [observation.tobytes()]
    for action in generator.integers(env.action_space.n, size=steps):
        observation, reward, terminated, truncated, _ = env.step(action)
        run.append((observation.tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            observation, _ = env.reset()
            run.append(observation.tobytes())
    return run


@needs_ple
@pytest.mark.parametrize("game", PLAYABLE)
def test_same_seed_and_actions_give_the_same_run(game: str) -> None:
    env = PLEEnv(game, "gray")
    run = play(env, 3)
    assert run == play(env, 3)
    assert run == play(PLEEnv(game, "gray"), 3)
    assert run != play(env, 4)


@needs_ple
def test_several_games_run_in_one_process() -> None:
    alone = play(PLEEnv("Catcher"), 1)
    env, other = PLEEnv("Catcher"), PLEEnv("FlappyBird")
    other.reset(seed=0)
    assert play(env, 1) == alone
    batch = DummyVecEnv([lambda: PLEEnv("Pong"), lambda: PLEEnv("Pong")])
    batch.seed(0)
    first = batch.reset()
    assert isinstance(first, np.ndarray)
    assert first.shape == (2, 48, 64, 3)


@needs_ple
def test_screens_are_cropped_resized_and_stacked() -> None:
    raw = PLEEnv("MonsterKong", "gray")
    env = preprocess(PLEEnv("MonsterKong", "gray"), crop=(15, 15, 15, 20), size=(29, 31), stack=2)
    assert env.observation_space == gym.spaces.Box(0, 255, (29, 31, 2), np.uint8)
    check_sb3(env)
    screen, _ = raw.reset(seed=0)
    small, _ = env.reset(seed=0)
    for action in (0, 0, 1):
        before = small[..., 1]
        screen, small = raw.step(action)[0], env.step(action)[0]
        blocks = screen[15:-15, 15:-20, 0].reshape(29, 15, 31, 15).mean(axis=(1, 3))
        assert np.abs(blocks - small[..., 1]).max() <= 0.5
        np.testing.assert_array_equal(small[..., 0], before)


@needs_ple
def test_gray_is_the_luma_of_rgb() -> None:
    colour, _ = PLEEnv("FlappyBird", "rgb").reset(seed=0)
    gray, _ = PLEEnv("FlappyBird", "gray").reset(seed=0)
    assert np.abs(colour @ [0.299, 0.587, 0.114] - gray[..., 0]).max() <= 2


@needs_ple
def test_states_are_vectors_where_a_game_has_them() -> None:
    env = PLEEnv("Catcher", "state")
    check_sb3(env)
    assert env.observation_space.shape == (4,)
    with pytest.raises(ValueError, match="no state apart from its screen"):
        PLEEnv("MonsterKong", "state")
    with pytest.raises(ValueError, match="pass a state_function"):
        PLEEnv("Snake", "state")
    snake = PLEEnv("Snake", "state", state_function=lambda state: np.array([state["food_x"], state["food_y"]]))
    assert snake.reset(seed=0)[0].shape == (2,)


@needs_ple
def test_rewards_are_the_games_or_numbers_or_a_function_of_events() -> None:
    def rewards(reward: Any, frame_skip: int = 1) -> list[float]:
        run = play(PLEEnv("Catcher", "state", reward=reward, frame_skip=frame_skip), 1, 200)
        return [step[1] for step in run if isinstance(step, tuple)]

    own = rewards(None)
    assert min(own) < 0  # Catcher gives 1, -1, and -5 more for the last life
    assert rewards({"negative": -3.0, "loss": -30.0}) == [
        {-1.0: -3.0, -6.0: -33.0}.get(reward, reward) for reward in own
    ]
    told = rewards(lambda events: events["positive"] - events["negative"] - 5.0 * events["loss"])
    assert told == own
    assert rewards(lambda events: float(events["tick"]), frame_skip=3)[0] == 3
    with pytest.raises(ValueError, match=r"no events \['bonus'\]"):
        PLEEnv("Catcher", reward={"bonus": 1.0})
    with pytest.raises(ValueError, match="more than its events"):
        play(PLEEnv("PuckWorld", "state", reward=lambda events: 0.0), 0)


@needs_ple
def test_horizon_truncates() -> None:
    env = PLEEnv("MonsterKong", "gray", horizon=3)
    env.reset(seed=0)
    assert [env.step(5)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    with pytest.raises(ResetNeeded):
        env.step(5)


@needs_ple
def test_caps_trains_on_monster_kong() -> None:
    from sb3_caps import CAPS

    env = preprocess(PLEEnv("MonsterKong", "gray", horizon=100), crop=(15, 15, 15, 20), size=(84, 84), stack=2)
    model = CAPS("CnnPolicy", env, buffer_size=300, learning_starts=100, batch_size=4, seed=0)
    model.learn(200)
    assert model.num_timesteps == 200


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"game": "Chess"}, "Unknown game 'Chess'"),
        ({"game": "Pong", "observation": "ram"}, "Unknown observation 'ram'"),
        ({"game": "Pong", "frame_skip": 0}, "at least 1"),
        ({"game": "Pong", "horizon": 0}, "at least 1"),
        ({"game": "Pong", "render_mode": "ascii"}, "Unknown render_mode"),
        ({"game": "Pong", "state_function": np.array}, "is for observation='state'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PLEEnv(**kwargs)


@needs_ple
def test_wrong_calls_are_refused() -> None:
    env = PLEEnv("Pong")
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="out of range"):
        env.step(3)
    with pytest.raises(ValueError, match="leaves nothing"):
        preprocess(env, crop=(30, 30, 0, 0))
    with pytest.raises(ValueError, match="stack"):
        preprocess(env, stack=0)
    with pytest.raises(ValueError, match="for screens"):
        preprocess(PLEEnv("Pong", "state"))


@needs_ple
def test_our_monster_kong_walks_and_jumps_like_ples() -> None:
    env = PLEEnv("MonsterKong", "gray")
    env.reset(seed=0)
    player = env.ple.game.newGame.Players[0]
    for _ in range(30):  # it starts a little above the floor
        env.step(env.action_meanings.index("no-op"))

    def moves(names: list[str]) -> list[tuple[float, float]]:
        places = [player.getPosition()]
        for name in names:
            env.step(env.action_meanings.index(name))
            places.append(player.getPosition())
        return [(x - places[0][0], y - places[0][1]) for x, y in places[1:]]

    level = Level("\n".join(["#" * 12, *["#..........#"] * 4, "#P.........#", "#" * 12]))
    body = Body(np.array([5 * TILE]), np.array([5 * TILE]), np.array([0]))
    # Up to where PLE lands: it lets the agent sink into the floor first and puts it back a step later.
    names = ["left", "right", "jump", *["right"] * 5, *["no-op"] * 11]
    for theirs, name in zip(moves(names), names, strict=True):
        body = step(level, body, np.array([ACTIONS.index(name)]))
        ours = ((body.x[0] - 5 * TILE) / UNITS, (body.y[0] - 5 * TILE) / UNITS)
        assert ours == pytest.approx(theirs)
