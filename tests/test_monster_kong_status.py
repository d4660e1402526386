"""What pictures of Monster Kong tell people, and what observations do not tell the agent."""

from typing import Any

import numpy as np
import pytest

from sb3_caps.envs.monster_kong.drawing import painter
from sb3_caps.envs.monster_kong.env import MonsterKongEnv
from sb3_caps.envs.monster_kong.sprites import PALETTE, sprites
from sb3_caps.envs.monster_kong.status import DIGITS, draw_status

START = (20, 24)


def game(goal: str, observation: str = "pixels", horizon: int = 1200) -> MonsterKongEnv:
    env = MonsterKongEnv("a", goal, observation, horizon, render_mode="rgb_array")
    env.reset(options={"start": START})
    return env


def rendered(env: MonsterKongEnv) -> Any:
    picture = env.render()
    assert picture is not None
    return picture


@pytest.mark.parametrize("goal", ["diamond", "gem", "coin", "princess"])
def test_only_the_border_and_the_frame_of_the_goal_differ(goal: str) -> None:
    env = game(goal)
    plain, picture = painter("a").full(env.state), rendered(env)
    changed = (plain != picture).any(axis=2)
    assert changed[:15].sum() > 200
    row, column = env.level.objects[goal]
    height = sprites()[goal].shape[0]
    around = np.zeros_like(changed)
    around[(row + 1) * 15 - height - 2 : (row + 1) * 15, column * 15 - 2 : (column + 1) * 15 + 2] = True
    around[:15] = True
    assert not (changed & ~around).any()
    assert (picture[(row + 1) * 15 - height - 2, column * 15 - 2] == PALETTE["y"]).all()
    # Nothing of the object itself is hidden
    inner = np.s_[(row + 1) * 15 - height : (row + 1) * 15 - 1, column * 15 : (column + 1) * 15]
    np.testing.assert_array_equal(picture[inner], plain[inner])


def test_the_steps_left_count_down() -> None:
    env = game("coin", horizon=30)
    first = rendered(env)
    env.step(5)
    second = rendered(env)
    changed = np.flatnonzero((first != second).any(axis=(1, 2)))
    assert changed.max() < 15
    np.testing.assert_array_equal(second[:15], rendered(game("coin", horizon=29))[:15])


def test_every_number_looks_different() -> None:
    level, blank = game("coin").level, np.zeros((465, 495, 3), dtype=np.uint8)
    looks = {draw_status(blank.copy(), level, "coin", number)[:15].tobytes() for number in range(1201)}
    assert len(looks) == 1201
    assert len(set(DIGITS)) == 10


def test_observations_know_nothing_of_it() -> None:
    shown, hidden = game("coin"), MonsterKongEnv("a", "princess")
    hidden.reset(options={"start": START})
    background = painter("a").background.copy()
    for action in (3, 3, 4, 3, 5, 2):
        rendered(shown)
        np.testing.assert_array_equal(shown.step(action)[0], hidden.step(action)[0])
    np.testing.assert_array_equal(painter("a").background, background)
    assert (rendered(shown) != hidden.picture()).any()
