"""The numbers that the study's settings rest on, against the planner and the rule itself."""

import numpy as np
import pytest

from sb3_caps.envs.monster_kong.physics import ACTIONS
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.studies.monster_kong.analysis import (
    area_of_wrong,
    coverage,
    exact_option_values,
    noise_table,
    option_actions,
    termination_table,
)

# Two floors and four objects, so that there are three sources
SMALL = """
############
#.P......D.#
####HH######
#...HH.....#
#.B.HH...C.#
############
"""


def test_options_that_always_end_have_the_planners_values() -> None:
    solution = plan(SMALL, "princess")
    values = exact_option_values(SMALL, "princess", beta=1.0)
    alive = ~solution.table.spiked & ~solution.table.reached("princess")
    np.testing.assert_allclose(values.max(axis=1)[alive], solution.values()[alive], atol=1e-4)


def test_option_values_satisfy_the_rule_in_every_state() -> None:
    beta, gamma = 0.25, 0.9
    values = exact_option_values(SMALL, "gem", beta, gamma)
    table, actions = plan(SMALL, "gem").table, option_actions(SMALL, "gem")
    assert actions.shape == (len(table), 9)
    reached = table.reached("gem")
    for state in np.random.default_rng(0).integers(len(table), size=200):
        for option in range(9):
            after = table.successors[state, actions[state, option]]
            # Algorithm 2: r + γ [(1 - β) Q_O(s', o) + β max Q_O(s', ·)]
            expected = 1.0
            if not reached[after]:
                expected = gamma * ((1 - beta) * values[after, option] + beta * values[after].max())
            assert values[state, option] == pytest.approx(expected, abs=1e-4)


def test_exact_values_lead_to_the_goal_and_noise_is_told() -> None:
    lines = list(noise_table(SMALL, ["coin"]))
    first_row = next(line for line in lines if line.startswith("| coin | 1.0 |"))
    assert first_row.split(" | ")[2].startswith("100%, ")


def test_exact_values_of_single_actions_tell_the_best_one() -> None:
    """With β = 1 each value is that of one action; with less it is not, but stands more noise."""
    rows = [line.strip("| ").split(" | ") for line in termination_table(SMALL, ["coin"]) if line.startswith("| coin")]
    areas = {float(beta): [float(area) for area in found] for _, beta, *found in rows}
    assert areas[1.0][0] == 1.0
    assert areas[0.06][0] < 1.0
    assert areas[1.0] == sorted(areas[1.0], reverse=True)
    assert areas[1.0][-1] < areas[0.06][-1]


def test_who_knows_where_sources_are_wrong_has_an_area_of_one() -> None:
    solution, sources = plan(SMALL, "coin"), option_actions(SMALL, "coin")[:, : -len(ACTIONS)]
    wrong = ~np.take_along_axis(solution.optimal, sources, axis=1)
    assert area_of_wrong(0.3 + 0.1 * wrong, sources, solution) == 1
    assert area_of_wrong(-wrong.astype(float), sources, solution) == 0
    assert area_of_wrong(np.full(wrong.shape, 0.9), sources, solution) == 0.5
    # Where the goal is out of reach nothing is right or wrong
    unreachable = ~(solution.optimal.any(axis=1) & (solution.steps > 0))
    assert unreachable.any()
    assert area_of_wrong(np.where(unreachable[:, None], 1.0, wrong), sources, solution) == 1


def test_more_steps_see_more_and_never_more_than_all() -> None:
    shares = [coverage(SMALL, "diamond", horizon=50, steps=steps, seed=3) for steps in (64, 640, 64_000)]
    assert 0 <= shares[0] <= shares[1] < shares[2] <= 1 + 1e-4
    assert shares[2] > 0.9
