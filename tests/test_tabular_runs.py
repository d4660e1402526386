"""Tabular learners: convergence to the planned optimum, and batched against single runs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sb3_caps.envs.grid import GridMap, GridTask, plan
from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.tabular import (
    OPSTL,
    PRQL,
    CAPSConfig,
    Experiment,
    Greedy,
    Learner,
    OPSTLConfig,
    OptionCritic,
    OptionCriticConfig,
    PRQLConfig,
    QConfig,
    QLearning,
    TabularCAPS,
)
from sb3_caps.tabular.caps import sigmoid
from sb3_caps.tabular.compiled import compiled
from sb3_caps.tabular.evaluation import call_and_return
from sb3_caps.tabular.streams import Streams
from tests.small_grid import RIGHT, SMALL, TASK

# Convergence


TINY = GridMap.from_text("######\n#..x.#\n#.#..#\n######")
TINY_TASK = GridTask(TINY, "x")


def bellman_fixed_point(actions: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Iterate Q_O(s, o) = r + γ [(1 − β) Q_O(s', o) + β max Q_O(s', ·)] of moves without noise on the tiny map."""
    cells, goal = np.arange(TINY.n_cells), TINY.goal_cell("x")
    shift = np.array([-TINY.width, TINY.width, -1, 1])
    targets = np.clip(cells[:, None] + shift[actions], 0, TINY.n_cells - 1)
    targets = np.where(TINY.walls.ravel()[targets], cells[:, None], targets)
    options = np.arange(targets.shape[1])
    values = np.zeros(targets.shape)
    for _ in range(1000):
        after = beta[targets, options]
        worth = (1 - after) * values[targets, options] + after * values.max(axis=1)[targets]
        values = np.where(targets == goal, 1.0, 0.95 * worth)
    return values


def explored(*configs: CAPSConfig) -> TabularCAPS:
    """CAPS after exploring the tiny map at random; without noise the cell is a Markov state."""
    learner = TabularCAPS(configs, TINY.n_cells)
    Experiment(learner, [TINY_TASK] * len(configs), range(len(configs)), episodes=400, noise=0.0).run()
    return learner


def test_theorem_1_values_converge_to_the_solution_of_their_bellman_equation() -> None:
    plain = CAPSConfig([plan(TINY, 7).policy], half_life=1e9)
    configs = [replace(plain, termination=0.5), replace(plain, termination=1.0), plain]
    learner = explored(*configs)
    greedy, values = learner.greedy(), learner.tables()["values"]
    cells = TINY.start_cells(TINY.goal_cell("x"))
    # Where β is learned it moves on while the values follow: they are a little behind.
    for run, tolerance in enumerate((1e-6, 1e-6, 0.005)):
        solution = bellman_fixed_point(greedy.actions[run], greedy.termination[run])
        np.testing.assert_allclose(values[run, cells], solution[cells], atol=tolerance)


def test_theorem_2_non_optimal_options_end_and_the_greedy_policy_is_optimal() -> None:
    learner = explored(CAPSConfig([plan(TINY, 7).policy], half_life=1e9, termination_learning_rate=20.0))
    cells = TINY.start_cells(TINY.goal_cell("x"))
    values, theta = learner.values[cells], learner.theta[cells]
    # β_o(s) is learned where o can arrive in s; elsewhere it plays no role.
    worse = (values < values.max(axis=1, keepdims=True) - 0.02) & (theta != 0.0)
    assert worse.sum() > 10
    assert sigmoid(theta[worse]).min() > 0.9
    np.testing.assert_allclose(values.max(axis=1), plan(TINY, "x", noise=0.0).values[cells], atol=0.005)


@pytest.mark.parametrize("name", ["CAPS", "Q-learning"])
def test_convergence_to_the_planned_optimum(name: str) -> None:
    sources = [plan(SMALL, cell).policy for cell in (9, 13)]
    seeds = range(4)
    learner: Learner
    if name == "CAPS":
        learner = TabularCAPS([CAPSConfig(sources, learning_rate=0.1)] * 4, SMALL.n_cells)
    else:
        learner = QLearning([QConfig(learning_rate=0.1, half_life=100.0)] * 4, SMALL.n_cells)
    Experiment(learner, [TASK] * 4, seeds, episodes=1500).run()
    task = evaluator(SMALL, "x")
    values = [task.start @ task.policy_values(policy) for policy in learner.greedy().flat()]
    # The tolerance that is stated: 2% of the optimum in every run.
    assert min(values) > 0.98 * plan(SMALL, "x").value


def test_evaluation_equals_the_planner() -> None:
    planned = plan(SMALL, "x")
    actions = np.stack([planned.policy, np.zeros_like(planned.policy)], axis=1)[None]
    always_first = np.zeros((1, SMALL.n_cells), dtype=int)
    value = call_and_return(Greedy(always_first, actions, np.ones(actions.shape)), [TASK], episodes=20_000)
    assert value[0] == pytest.approx(planned.value, rel=0.01)
    # An option that goes up and never ends, chosen everywhere but on the way, is worth less.
    half = np.where(np.arange(SMALL.n_cells) % 2, 0, 1)[None]
    stuck = call_and_return(Greedy(half, actions, np.zeros(actions.shape)), [TASK], episodes=2000)
    assert stuck[0] < 0.8 * planned.value


# Batched and single runs


def sources() -> list[np.ndarray]:
    return [plan(SMALL, cell).policy for cell in (9, 13)]


BATCHES: dict[str, Callable[[], tuple[type[Any], list[Any]]]] = {
    "CAPS": lambda: (
        TabularCAPS,
        [
            CAPSConfig(sources()),
            CAPSConfig(sources()[:1], concurrent=False, learning_rate=0.1),
            CAPSConfig(termination=0.5, random_ties=False, learning_rate_half_life=20.0),
        ],
    ),
    "Q-learning": lambda: (QLearning, [QConfig(), QConfig(half_life=10.0), QConfig(learning_rate=0.1)]),
    "PRQL": lambda: (
        PRQL,
        [PRQLConfig(sources=sources(), reuse_half_life=k, random_ties=k > 9) for k in (9.0, 99.0, np.inf)],
    ),
    "OPS-TL": lambda: (
        OPSTL,
        [
            OPSTLConfig(sources=sources(), bonus=b, reuse_half_life=k)
            for b, k in ((0.0, 9.0), (0.1, 99.0), (1.0, np.inf))
        ],
    ),
    "Option-Critic": lambda: (
        OptionCritic,
        [OptionCriticConfig([np.zeros((SMALL.n_cells, 4))] * 2, half_life=k) for k in (0.0, 10.0, 800.0)],
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batched_runs_equal_single_runs(name: str) -> None:
    make, configs = BATCHES[name]()
    tasks, seeds = [TASK, GridTask(SMALL, 9), TASK], [5, 6, 7]
    together = Experiment(make(configs, SMALL.n_cells), tasks, seeds, episodes=40, snapshots=[10, 40])
    together.run()
    for index, config in enumerate(configs):
        alone = Experiment(make([config], SMALL.n_cells), [tasks[index]], [seeds[index]], 40, snapshots=[10, 40])
        alone.run()
        np.testing.assert_array_equal(together.returns[index], alone.returns[0])
        greedy = alone.learner.greedy()
        np.testing.assert_array_equal(together.learner.greedy().flat()[index], greedy.flat()[0])
        for key, table in alone.learner.tables().items():
            width = table.shape[-1]
            np.testing.assert_array_equal(together.learner.tables()[key][index, ..., :width], table[0])
            np.testing.assert_array_equal(together.snapshots[key][:, index, ..., :width], alone.snapshots[key][:, 0])


@pytest.mark.parametrize("name", BATCHES)
def test_compiled_runs_equal_batched_runs(name: str) -> None:
    pytest.importorskip("numba")
    make, configs = BATCHES[name]()
    tasks = [TASK, GridTask(SMALL, 9), TASK]
    options: dict[str, Any] = {"snapshots": [10, 40], "rewards": [1.0, 10.0, 100.0]}

    def start(use_compiled: bool) -> Experiment:
        learner = make(configs, SMALL.n_cells)
        return Experiment(learner, tasks, [5, 6, 7], episodes=60, use_compiled=use_compiled, **options)

    batched, fast, both = start(False), start(True), start(True)
    assert compiled(fast.learner) is not None
    batched.run()
    fast.run()
    # Stopped anywhere, and gone on with by the other one
    both.run(steps=77)
    both.use_compiled = False
    both.run(steps=100)
    both.use_compiled = True
    both.run()
    for other in (fast, both):
        # The same draws and the same choices; exponentials may differ in their last digit.
        np.testing.assert_array_equal(other.returns, batched.returns)
        assert other.finished == batched.finished == 180
        for key, table in batched.learner.tables().items():
            np.testing.assert_allclose(other.learner.tables()[key], table, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(other.snapshots[key], batched.snapshots[key], rtol=1e-9, atol=1e-9)


def test_what_has_no_compiled_twin_is_stepped_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careful(QLearning):
        """A rule of one's own."""

    assert compiled(Careful([QConfig()], SMALL.n_cells)) is None
    monkeypatch.setattr("sb3_caps.tabular.compiled.available", lambda: False)
    learner = QLearning([QConfig()], SMALL.n_cells)
    assert compiled(learner) is None
    assert Experiment(learner, [TASK], [1], episodes=3).run()


def test_the_reward_scales_what_is_learned_and_not_what_is_recorded() -> None:
    # A power of two is exact: Q-learning, which has no other scale, does the same at any reward.
    learner = QLearning([QConfig(half_life=10.0)] * 2, SMALL.n_cells)
    experiment = Experiment(learner, [TASK] * 2, [3, 3], episodes=50, rewards=[1.0, 8.0], use_compiled=False)
    experiment.run()
    np.testing.assert_array_equal(experiment.returns[0], experiment.returns[1])
    values = learner.tables()["values"]
    np.testing.assert_array_equal(8.0 * values[0], values[1])
    with pytest.raises(ValueError, match="positive reward for each of 2 runs"):
        Experiment(learner, [TASK] * 2, [3, 3], episodes=50, rewards=[1.0, 0.0])


def test_termination_learning_rate_times_reward_is_all_that_matters_to_caps() -> None:
    configs = [CAPSConfig(sources(), termination_learning_rate=rate) for rate in (1.6, 0.2)]
    learner = TabularCAPS(configs, SMALL.n_cells)
    experiment = Experiment(learner, [TASK] * 2, [3, 3], episodes=50, rewards=[1.0, 8.0], use_compiled=False)
    experiment.run()
    np.testing.assert_array_equal(experiment.returns[0], experiment.returns[1])
    np.testing.assert_allclose(learner.tables()["theta"][0], learner.tables()["theta"][1], rtol=1e-12)


def test_a_stopped_experiment_goes_on_as_if_nothing_had_happened() -> None:
    def start() -> Experiment:
        return Experiment(QLearning([QConfig()] * 2, SMALL.n_cells), [TASK] * 2, [1, 2], episodes=30)

    whole, parts = start(), start()
    whole.run()
    while not parts.run(steps=37):
        assert parts.finished < 60
    np.testing.assert_array_equal(whole.returns, parts.returns)
    assert parts.finished == 60


def test_returns_are_discounted_from_the_first_step() -> None:
    # A corridor of two cells: from the only start the first "right" without noise is worth 1.
    corridor = GridMap.from_text("####\n#.x#\n####")
    learner = QLearning([QConfig(half_life=1e-9)], corridor.n_cells)
    learner.episodes[:] = 0
    learner.values[5, RIGHT] = 1.0
    experiment = Experiment(learner, [GridTask(corridor, "x")], [0], episodes=5, noise=0.0)
    experiment.run()
    np.testing.assert_array_equal(experiment.returns[0, 1:], 1.0)


def test_streams_are_uniform_independent_and_belong_to_their_run() -> None:
    streams = Streams([1, 2, 3], 2)
    draws = np.array([streams.next() for _ in range(6000)])
    flat = draws.reshape(6000, 6)
    assert abs(flat.mean() - 0.5) < 0.005
    assert abs(flat.var() - 1 / 12) < 0.002
    correlation = np.corrcoef(flat.T)
    assert np.abs(correlation - np.eye(6)).max() < 0.06
    assert abs(np.corrcoef(flat[1:, 0], flat[:-1, 0])[0, 1]) < 0.06

    dropped = Streams([1, 2, 3], 2)
    for step in range(600):
        if step == 300:
            dropped.keep(np.array([1]))
        row = dropped.next()
        np.testing.assert_array_equal(row[1 if step < 300 else 0], draws[step, 1])
