"""The tasks of the suite."""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.envs.grid import Plan as GridPlan
from sb3_caps.envs.grid import TablePolicy, plan
from sb3_caps.envs.monster_kong.level import GOALS, Setting
from sb3_caps.envs.monster_kong.observations import FeatureObserver
from sb3_caps.envs.monster_kong.planner import plan as kong_plan
from sb3_caps.envs.monster_kong.sources import OptimalPolicy
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv
from sb3_caps.extras import require
from sb3_caps.sources import as_source, each
from sb3_caps.studies.reuse.tasks import TUNING, EnvMaker, Task, references, register_task
from sb3_caps.studies.reuse.worlds import BatchedVecEnv, World
from sb3_caps.studies.reuse.worlds.classic import Acrobot, CartPole, MountainCar
from sb3_caps.studies.reuse.worlds.errands import Errands, worst_actions
from sb3_caps.studies.reuse.worlds.grid import Grid
from sb3_caps.studies.reuse.worlds.minatar import MinAtar
from sb3_caps.studies.reuse.worlds.minigrid import MiniGrid
from sb3_caps.studies.reuse.worlds.railway import railway

MAPS = Path(__file__).parent / "maps"
N_HARMFUL = 3
GRID_GAMMA, GAMMA = 0.95, 0.99
# Every optimal path of the maps is shorter
KONG_HORIZON = 300
HEURISTIC = "heuristic"


def load_trained(folder: Path, *names: str) -> list[Any]:
    """
    Load trained sources.

    :param folder: with trained models
    :param names: of entries of ``sources`` or ``references`` in ``zoo_configs/reuse.yml``, or ``"heuristic"``
    :return: a source for each
    """
    missing = [name for name in names if name != HEURISTIC and not (folder / name / "model.zip").is_file()]
    if missing:
        raise FileNotFoundError(
            f"There is no {', '.join(missing)} in {folder}: sb3-caps reproduce reuse --train makes what is missing."
        )
    return [
        lander_heuristic() if name == HEURISTIC else as_source(folder / name / "model.zip", name=name) for name in names
    ]


def batched_env(world: Callable[..., World], n_envs: int, seed: int, **kwargs: Any) -> VecEnv:
    """
    Make environments that step on arrays.

    :param world: makes a world
    :param n_envs: number of environments
    :param seed: of their random numbers
    :param kwargs: of the world
    :return: the environments
    """
    return BatchedVecEnv(world(**kwargs), n_envs, seed)


def lander(n_envs: int, seed: int, sign: float = 1.0, **kwargs: Any) -> VecEnv:
    """
    Make environments of the lander.

    :param n_envs: number of environments
    :param seed: of their random numbers
    :param sign: of the rewards; -1 pays for crashing
    :param kwargs: of ``LunarLander-v3``
    :return: the environments
    """
    require("Box2D", "reuse")

    def negated(env: gym.Env) -> gym.Env:
        return gym.wrappers.TransformReward(env, lambda reward: sign * float(reward))

    return make_vec_env("LunarLander-v3", n_envs, seed, env_kwargs=kwargs, wrapper_class=None if sign == 1 else negated)


def minatar(n_envs: int, seed: int, **kwargs: Any) -> VecEnv:
    """
    Make environments of MinAtar.

    :param n_envs: number of environments
    :param seed: of their random numbers
    :param kwargs: of ``MinAtar``
    :return: the environments
    """
    return make_vec_env(MinAtar, n_envs, seed, env_kwargs=kwargs)


def minigrid(n_envs: int, seed: int, level: str) -> VecEnv:
    """
    Make environments of MiniGrid.

    :param n_envs: number of environments
    :param seed: of their random numbers
    :param level: see ``MiniGrid``
    :return: the environments
    """
    return make_vec_env(MiniGrid, n_envs, seed, env_kwargs={"level": level})


def lander_heuristic() -> Any:
    """Return Gymnasium's own rule for its lander."""
    heuristic = require("gymnasium.envs.box2d.lunar_lander", "reuse").heuristic
    # All that it asks an environment for
    discrete = SimpleNamespace(unwrapped=SimpleNamespace(continuous=False))
    return as_source(each(partial(heuristic, discrete)), name=HEURISTIC)


def _register_trained(name: str, kind: str, make_env: EnvMaker, steps: int, **kwargs: Any) -> None:
    """A task whose sources were trained on its family's original, the first word of its name."""
    family = name.split("-")[0]
    sources = (f"{family}-dqn", f"{family}-ppo", *([HEURISTIC] if family == "lander" else []))
    harmful = tuple(f"{family}-harmful-{seed}" for seed in range(N_HARMFUL))

    def best(folder: Path) -> list[Any]:
        return load_trained(folder, references()[name]["policy"])

    register_task(
        Task(
            name,
            kind,
            make_env,
            steps,
            helpful=lambda folder: load_trained(folder, *sources),
            harmful=lambda folder: load_trained(folder, *harmful),
            best=best,
            **kwargs,
        )
    )


@cache
def _grid_plan(map_name: str, goal: str) -> GridPlan:
    """The planner takes seconds, and every run of a worker asks for the same."""
    return plan(map_name, goal, GRID_GAMMA)


def _grid_policy(map_name: str, goal: str, name: str) -> Any:
    return as_source(TablePolicy(_grid_plan(map_name, goal).policy), name=name)


def _register_grid(name: str, map_name: str, goal: str, **kwargs: Any) -> None:
    make_env = partial(batched_env, partial(Grid, map_name, goal))

    def helpful(_: Path) -> list[Any]:
        return [_grid_policy("rooms", source, source) for source in ("G1", "G2", "G3", "G4") if source != goal]

    def harmful(_: Path) -> list[Any]:
        values = _grid_plan(map_name, goal).action_values
        return [as_source(TablePolicy(worst_actions(values, i)), name=f"harmful_{i}") for i in range(N_HARMFUL)]

    def best(_: Path) -> list[Any]:
        return [_grid_policy(map_name, goal, "optimal")]

    def optimum() -> float:
        return _grid_plan(map_name, goal).value

    register_task(Task(name, "grid", make_env, 32_000, helpful, harmful, best, optimum, GRID_GAMMA, **kwargs))


class KongTable(OptimalPolicy):
    """
    The opposite of an optimal policy of Monster Kong: away from the goal, or into spikes.

    :param setting: the map
    :param goal: the object not to reach
    :param seed: see ``worst_actions``
    """

    def __init__(self, setting: Setting, goal: str, seed: int) -> None:
        super().__init__(setting, goal, "features")
        self.seed = seed
        steps = self._plan.steps[self._plan.table.successors].astype(np.float64)
        self._worst = worst_actions(-steps, seed)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        assert isinstance(self._observer, FeatureObserver)
        return self._worst[self._observer.identify(np.asarray(observations))]

    def __reduce__(self) -> tuple[Any, ...]:
        return KongTable, (self.level, self.goal, self.seed)


def _register_kong(name: str, setting: str, goal: str, held_back: bool = False) -> None:
    def make_env(n_envs: int, seed: int) -> VecEnv:
        env = MonsterKongVecEnv(n_envs, setting, goal, "features", KONG_HORIZON)
        env.seed(seed)
        return env

    def helpful(_: Path) -> list[Any]:
        others = [other for other in GOALS if other != goal]
        return [as_source(OptimalPolicy(setting, other, "features"), name=other) for other in others]

    def harmful(_: Path) -> list[Any]:
        return [as_source(KongTable(setting, goal, seed), name=f"harmful_{seed}") for seed in range(N_HARMFUL)]

    def best(_: Path) -> list[Any]:
        return [as_source(OptimalPolicy(setting, goal, "features"), name="optimal")]

    def optimum() -> float:
        return kong_plan(setting, goal).optimum(GAMMA)

    register_task(Task(name, "kong", make_env, 128_000, helpful, harmful, best, optimum, GAMMA, held_back=held_back))


def _register_errands(name: str, make_world: Callable[[], Errands], places: str, discount: float) -> None:
    def helpful(_: Path) -> list[Any]:
        return [as_source(make_world().go_to(place), name=f"to_{place}") for place in places]

    def harmful(_: Path) -> list[Any]:
        policies = [make_world().policy(discount, worst=True, seed=seed) for seed in range(N_HARMFUL)]
        return [as_source(policy, name=f"harmful_{seed}") for seed, policy in enumerate(policies)]

    def best(_: Path) -> list[Any]:
        return [as_source(make_world().policy(discount), name="optimal")]

    def optimum() -> float:
        return make_world().optimum(discount)

    register_task(
        Task(name, "errands", partial(batched_env, make_world), 64_000, helpful, harmful, best, optimum, discount)
    )


def key_and_door() -> Errands:
    """Return a maze in which a key opens a door, with no other reward."""
    return Errands((MAPS / "keydoor.txt").read_text(), [("K", "D")])


def delivery() -> Errands:
    """Return the errand of a package, from one of two places to one of two others: 20 at the end, at 1 a step."""
    return Errands((MAPS / "delivery.txt").read_text(), list(product("AB", "CD")), reward=20.0, cost=1.0)


# The sources of a family are trained with original physics, the tasks' own references with theirs. MinAtar's rules are
# made easier for sources: no action sticks and the game does not get harder.
FAMILIES: dict[str, Callable[..., VecEnv]] = {
    "cartpole": partial(batched_env, CartPole),
    "acrobot": partial(batched_env, Acrobot),
    "mountaincar": partial(batched_env, MountainCar),
    "lander": lander,
    "breakout": partial(minatar, game="breakout", sticky=0.0, ramping=False),
    "asterix": partial(minatar, game="asterix", sticky=0.0, ramping=False),
    "lavagap": partial(minigrid, level="LavaGapS5-v0"),
    "crossing": partial(minigrid, level="SimpleCrossingS9N1-v0"),
    "multiroom": partial(minigrid, level="MultiRoom-N2-S4-v0"),
}
WINDY: dict[str, Any] = {"gravity": -7.0, "enable_wind": True, "wind_power": 12.0, "turbulence_power": 1.0}
HEAVY: dict[str, Any] = {"lengths": (1.0, 1.5), "masses": (1.0, 1.5)}

_register_trained("cartpole-long", "classic", partial(batched_env, CartPole, gravity=15.0, length=1.5), 24_000)
_register_trained("cartpole-weak", "classic", partial(batched_env, CartPole, force=2.5), 24_000)
_register_trained("acrobot-heavy", "classic", partial(batched_env, Acrobot, **HEAVY), 24_000, held_back=True)
_register_trained(
    "mountaincar-steep", "mountaincar", partial(batched_env, MountainCar, gravity=0.0027, force=0.0009), 32_000
)
_register_trained("lander-windy", "lander", partial(lander, **WINDY), 40_000)
_register_trained("breakout-sticky", "minatar", partial(minatar, game="breakout"), 48_000)
_register_trained("asterix-sticky", "minatar", partial(minatar, game="asterix"), 48_000, held_back=True)
_register_grid("grid-g", "rooms", "g")
_register_grid("grid-g-prime", "rooms", "g'")
_register_grid("grid-changed", "rooms_changed", "g")
_register_kong("kong-g1", "a", "princess")
_register_kong("kong-g2", "b", "gem")
_register_kong("kong-a-coin", "a", "coin")
_register_kong("kong-b-diamond", "b", "diamond")
_register_kong("kong-third", str(MAPS / "kong_third.txt"), "princess", held_back=True)
_register_errands("key-door", key_and_door, "KD", GAMMA)
_register_errands("delivery", delivery, "ABCD", 1.0)
_register_errands("railway", railway, "AZ", GAMMA)
# Settings of methods are chosen on these
_register_trained(
    "cartpole-tuning", "classic", partial(batched_env, CartPole, force=5.0, length=1.0), 24_000, group=TUNING
)
_register_trained(
    "mountaincar-tuning", "mountaincar", partial(batched_env, MountainCar, force=0.0009), 32_000, group=TUNING
)
_register_grid("grid-tuning", "rooms", "G2", group=TUNING)
