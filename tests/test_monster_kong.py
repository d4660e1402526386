"""Monster Kong's rules, states and planner."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sb3_caps.envs.monster_kong import physics
from sb3_caps.envs.monster_kong.level import GOALS, SETTINGS, Level, load_level
from sb3_caps.envs.monster_kong.physics import ACTIONS, TILE, UNITS, Body
from sb3_caps.envs.monster_kong.planner import UNREACHABLE, plan, steps_to
from sb3_caps.envs.monster_kong.table import StateTable, enumerate_states, state_table, table_of
from tests.kong_reference import Agent, in_bricks, reference_step, touches_spike

ROOM = """
##########
#........#
#........#
#........#
#...H....#
#...H..P.#
####H#####
#...H....#
#D..H...^#
##########
"""
TASKS = [(setting, goal) for setting in SETTINGS for goal in GOALS]


@st.composite
def levels(draw: st.DrawFn) -> Level:
    """Any small map with a border of bricks and one object."""
    rows, columns = draw(st.integers(3, 6)), draw(st.integers(3, 7))
    tiles = draw(st.lists(st.sampled_from("...##HH^"), min_size=rows * columns, max_size=rows * columns))
    tiles[draw(st.integers(0, len(tiles) - 1))] = "P"
    inner = ["#" + "".join(tiles[row * columns : (row + 1) * columns]) + "#" for row in range(rows)]
    wall = "#" * (columns + 2)
    return Level("\n".join([wall, *inner, wall]))


def states_of(level: Level) -> StateTable:
    try:
        return enumerate_states(level)
    except ValueError:  # no tile to stand on
        assume(False)
        raise


def agent_in(table: StateTable, state: int) -> Agent:
    return Agent(*(Fraction(int(array[state]), UNITS) for array in (table.x, table.y, table.velocity)))


actions = st.lists(st.integers(0, len(ACTIONS) - 1), min_size=1, max_size=60)


@settings(max_examples=120, deadline=None)
@given(level=levels(), start=st.integers(0, 10_000), actions=actions)
def test_table_agrees_with_the_plain_rules_on_any_map(level: Level, start: int, actions: list[int]) -> None:
    table = states_of(level)
    state = int(table.starts[start % len(table.starts)])
    agent = agent_in(table, state)
    for action in actions:
        if table.spiked[state]:
            break
        state = int(table.successors[state, action])
        agent = reference_step(level, agent, ACTIONS[action])
        assert agent_in(table, state) == agent
        assert bool(table.spiked[state]) == touches_spike(level, agent)


@settings(max_examples=8, deadline=None)
@given(setting=st.sampled_from(SETTINGS), start=st.integers(0, 10_000), data=st.data())
def test_table_agrees_with_the_plain_rules_on_the_papers_maps(setting: str, start: int, data: st.DataObject) -> None:
    level, table = load_level(setting), state_table(setting)
    state = int(table.starts[start % len(table.starts)])
    agent = agent_in(table, state)
    # Actions that last a while get further than ones drawn at every step.
    for action, repeat in data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=8)):
        for _ in range(repeat):
            if not table.spiked[state]:
                state = int(table.successors[state, action])
                agent = reference_step(level, agent, ACTIONS[action])
                assert agent_in(table, state) == agent


@settings(max_examples=60, deadline=None)
@given(level=levels())
def test_no_state_is_inside_a_wall_or_off_the_map_and_no_step_goes_through_a_wall(level: Level) -> None:
    table = states_of(level)
    for state in range(0, len(table), max(1, len(table) // 40)):
        agent = agent_in(table, state)
        assert not in_bricks(level, agent.x, agent.y)
        assert TILE <= table.x[state] <= (level.shape[1] - 2) * TILE
        assert TILE <= table.y[state] <= (level.shape[0] - 2) * TILE
    # A step is shorter than a tile, so that one which starts and ends outside of walls passes through none.
    assert np.abs(table.x[table.successors] - table.x[:, None]).max() <= 5 * UNITS
    assert np.abs(table.y[table.successors] - table.y[:, None]).max() <= 8 * UNITS


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_state_of_the_papers_maps_is_inside_a_wall(setting: str) -> None:
    level, table = load_level(setting), state_table(setting)
    x, y = table.x.astype(np.int64), table.y.astype(np.int64)
    assert not physics.covers(level.solid, x, y).any()
    assert ((table.velocity == 0) == (table.on_bricks | table.on_ladder)).all()


def run(level: Level, column: int, row: int, letters: str) -> list[tuple[float, float, float]]:
    """Positions and velocities in pixels after each action: u, d, l, r, j or n."""
    body = Body(np.array([column * TILE]), np.array([row * TILE]), np.array([0]))
    places = []
    for letter in letters:
        body = physics.step(level, body, np.array(["udlrjn".index(letter)]))
        x, y, velocity = (float(array[0]) / UNITS for array in body)
        places.append((x, y, velocity))
    return places


def test_speeds_are_those_of_ple() -> None:
    level = Level(ROOM)
    assert run(level, 1, 5, "rr") == [(20, 75, 0), (25, 75, 0)]
    assert run(level, 1, 5, "l") == [(15, 75, 0)]  # a wall
    assert run(level, 4, 8, "uu") == [(60, 117.5, 0), (60, 115, 0)]
    assert run(level, 4, 8, "d") == [(60, 120, 0)]
    assert run(level, 1, 5, "ud") == [(15, 75, 0)] * 2  # no ladder here


def test_a_jump_rises_by_gravity_and_lasts_18_steps() -> None:
    heights = [75 - y for _, y, _ in run(Level(ROOM), 1, 5, "j" + "n" * 20)]
    rises = [7 - 0.85 * step for step in range(9)]
    assert np.allclose(heights[:9], np.cumsum(rises))
    assert max(heights) == pytest.approx(32.4)  # two tiles and a bit
    assert heights[16] > 0
    assert heights[17:] == [0, 0, 0, 0]


def test_a_fall_is_never_faster_than_8() -> None:
    shaft = Level("\n".join(["#####", "#P..#", "###.#", *["#...#"] * 20, "#####"]))
    places = run(shaft, 2, 1, "rrr" + "n" * 60)
    velocities = [velocity for _, _, velocity in places]
    assert velocities[:2] == [0, 0]
    assert velocities[2] == pytest.approx(0.85)  # past the edge
    assert max(velocities) == 8
    assert places[-1] == (45, 22 * 15, 0)


def test_a_ladder_catches_whoever_falls_or_jumps_past_it() -> None:
    level = Level(ROOM)
    # From beside the ladder, a jump to its side ends on it at a multiple of 2.5 pixels.
    x, y, velocity = run(level, 3, 8, "jr")[-1]
    assert velocity == 0
    assert x == 50
    assert y % 2.5 == 0
    assert run(level, 3, 8, "jr" + "j")[-1] == (x, y, 0)  # no jump from a ladder
    assert run(level, 4, 3, "uuu")[-1] == (60, 45, 0)  # standing on its upper end


def test_a_ceiling_stops_a_jump() -> None:
    level = Level("#####\n#..P#\n#####")
    assert run(level, 1, 1, "jnn") == [(15, 15, 0.85), (15, 15, 0), (15, 15, 0)]


def test_spikes_are_triangles() -> None:
    level = Level("#####\n#...#\n#P^.#\n#####")

    def hit(x: float, y: float) -> bool:
        place = np.array([round(x * UNITS)]), np.array([round(y * UNITS)])
        return bool(physics.on_spikes(level, *place)[0])

    assert not hit(15, 30)  # beside it
    assert hit(20, 30)
    assert not hit(30, 15)  # exactly above the tip
    assert hit(30, 16)
    assert not hit(20, 20)  # the slope leaves room beside the tip
    assert hit(20, 21)


def test_steps_of_a_task_counted_by_hand() -> None:
    solution = plan(ROOM, "princess")
    table = solution.table

    def steps(column: int, row: int) -> int:
        return int(solution.steps[table.start_at(column, row)])

    # One tile is three steps; the princess is touched five pixels before her tile is entered wholly.
    assert steps(5, 5) == 4
    assert steps(1, 5) == 16
    assert solution.values(0.99)[table.start_at(5, 5)] == pytest.approx(0.99**3)


@pytest.mark.parametrize(("setting", "goal"), TASKS)
def test_planner_values_equal_simulated_returns(setting: str, goal: str) -> None:
    solution = plan(setting, goal)
    table, gamma = solution.table, 0.99
    states = solution.starts.copy()
    returns, running = np.zeros(len(states)), np.ones(len(states), dtype=bool)
    for step in range(1, 1201):
        states = table.successors[states, solution.actions[states]]
        reached = table.reached(goal)[states] & running
        returns[reached] = gamma ** (step - 1)
        running &= ~(reached | table.spiked[states])
    assert not running.any()
    np.testing.assert_allclose(returns, solution.values(gamma)[solution.starts])
    assert solution.optimum(gamma) == pytest.approx(returns.mean())


@pytest.mark.parametrize(("setting", "goal"), TASKS)
def test_no_action_beats_the_plan(setting: str, goal: str) -> None:
    solution = plan(setting, goal)
    inside = ~solution.table.spiked & (solution.steps > 0)
    best = solution.steps[solution.table.successors].min(axis=1)
    expected = np.where(best == UNREACHABLE, UNREACHABLE, np.minimum(best, UNREACHABLE - 1) + 1)
    assert (solution.steps[inside] == expected[inside]).all()


@pytest.mark.parametrize(("setting", "goal"), TASKS)
def test_tasks_are_hard_for_chance_and_easy_for_the_optimum(setting: str, goal: str) -> None:
    solution = plan(setting, goal)
    table = solution.table
    assert 60 <= solution.mean_steps() <= 250
    generator = np.random.default_rng(0)
    states = generator.choice(solution.starts, 1000)
    running, found = np.ones(1000, dtype=bool), np.zeros(1000, dtype=bool)
    for _ in range(1200):
        states = table.successors[states, generator.integers(6, size=1000)]
        found |= running & table.reached(goal)[states]
        running &= ~(found | table.spiked[states])
    assert found.mean() < 0.1


@pytest.mark.parametrize(("setting", "goal"), TASKS)
def test_only_spikes_are_dead_ends(setting: str, goal: str) -> None:
    solution = plan(setting, goal)
    table = solution.table
    # Above a spike it can be too late already; who can still come to rest can reach the goal.
    can_rest = steps_to(table, (table.on_bricks | table.on_ladder) & ~table.spiked) < UNREACHABLE
    assert (solution.steps[can_rest] < UNREACHABLE).all()
    assert table.spiked.any()


def test_goals_are_in_the_rooms_that_the_paper_tells() -> None:
    def room(setting: str, goal: str) -> tuple[bool, bool]:
        level = load_level(setting)
        row, column = level.objects[goal]
        return row > level.shape[0] // 2, column > level.shape[1] // 2

    assert len({room("a", goal) for goal in GOALS}) == 4
    assert room("b", "gem") == room("b", "diamond")
    assert len({room("b", goal) for goal in GOALS}) == 3


def test_enumeration_finds_tens_of_thousands_of_states() -> None:
    for setting in SETTINGS:
        assert 10_000 < len(state_table(setting)) < 100_000
        assert load_level(setting).shape == (31, 33)  # 465 by 495 pixels


def test_table_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SB3_CAPS_CACHE", str(tmp_path / "new" / "folder"))
    table_of.cache_clear()
    made = state_table(ROOM)
    (file,) = (tmp_path / "new" / "folder").iterdir()
    table_of.cache_clear()
    written = file.stat().st_mtime_ns
    loaded = state_table(ROOM)
    assert loaded is not made
    np.testing.assert_array_equal(loaded.successors, made.successors)
    assert file.stat().st_mtime_ns == written

    file.write_bytes(b"damaged")
    table_of.cache_clear()
    np.testing.assert_array_equal(state_table(ROOM).successors, made.successors)
    assert file.stat().st_size > 1000


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SB3_CAPS_CACHE", str(tmp_path / "file"))
    table_of.cache_clear()
    assert len(state_table(ROOM)) > 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty|no such file"),
        ("####\n#P.#\n###", "all rows need the same length"),
        ("#####\n#P.x#\n#####\n#####", "unknown tile 'x' in row 2, column 4"),
        ("#####\n#P...\n#####\n#####", "border must be bricks.*row 2, column 5"),
        ("#####\n#PP.#\n#...#\n#####", "2 tiles 'P'"),
        ("#####\n#...#\n#...#\n#####", "no object"),
        ("##\n##", "between 3 and 48"),
        ("no_such_map.txt", "no such file"),
    ],
)
def test_wrong_maps_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_level(text)


def test_a_goal_out_of_reach_is_refused() -> None:
    with pytest.raises(ValueError, match=r"princess is out of reach from .* starts, one of them at column 1"):
        plan("######\n#.#P.#\n#.#..#\n######", "princess")
    with pytest.raises(ValueError, match="'coin' is not on map"):
        plan(ROOM, "coin")
    with pytest.raises(ValueError, match="no start"):
        plan("####\n#P^#\n#^^#\n####", "princess")


@pytest.mark.parametrize("tile", [(0, 0), (4, 6), (1, 1), (-1, 3), (8, 8), (99, 99)])
def test_a_start_in_a_wall_the_air_or_a_spike_is_refused(tile: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="No start at column"):
        state_table(ROOM).start_at(*tile)


def test_a_map_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "room.txt"
    path.write_text(ROOM)
    assert load_level(path).name == "room"
    assert load_level(str(path)).objects == load_level(ROOM).objects
    solved = plan(path, "princess")
    path.write_text(ROOM.replace("D..", "..D"))
    assert load_level(path).objects["diamond"] == (8, 3)
    assert plan(path, "princess") is not solved
