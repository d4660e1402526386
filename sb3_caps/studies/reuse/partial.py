"""Tasks whose sources know a part: the best of them is worth a sixth to two thirds of the reference."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.settings import settings
from sb3_caps.sources import as_source
from sb3_caps.studies.reuse.catalogue import GAMMA, MAPS, WINDY, batched_env, lander, load_trained, minatar, minigrid
from sb3_caps.studies.reuse.tasks import PARTIAL, Task, references, register_task
from sb3_caps.studies.reuse.worlds.classic import Acrobot, CartPole
from sb3_caps.studies.reuse.worlds.errands import Errands

# What is paid for the shortest ways through a level of MiniGrid, about
SOLVED = 0.95


def _register(
    name: str,
    kind: str,
    make_env: Callable[[int, int], VecEnv],
    steps: int,
    sources: tuple[str, ...],
    scale: tuple[float, float],
    **kwargs: Any,
) -> None:
    """A task with trained models as sources."""

    def helpful(folder: Path) -> list[Any]:
        found = load_trained(folder, *sources)
        for source in found:
            source.deterministic = not settings("reuse", "kinds")[kind].get("sampled", False)
        return found

    low, high = scale
    register_task(Task(name, kind, make_env, steps, helpful, random=low, reference=high, group=PARTIAL, **kwargs))


def _pair(family: str) -> tuple[str, str]:
    return f"{family}-ppo-0", f"{family}-ppo-1"


def _scale(name: str) -> tuple[float, float]:
    """That of a task with the same rules."""
    return references()[name]["random"], references()[name]["reference"]


def paid_errand() -> Errands:
    """Return the maze of the key and the door, in which the key pays half."""
    return Errands((MAPS / "keydoor.txt").read_text(), [("K", "D")], reward=0.5, halfway=0.5)


_register(
    "pole-long",
    "own-cartpole",
    partial(batched_env, partial(CartPole, gravity=15.0, length=1.5)),
    20_000,
    _pair("cartpole"),
    (20.0, 500.0),
)
_register(
    "pole-weak",
    "own-cartpole",
    partial(batched_env, partial(CartPole, force=2.0, gravity=12.0)),
    20_000,
    _pair("cartpole"),
    (20.0, 500.0),
)
_register(
    "acrobot-long",
    "own-acrobot",
    partial(batched_env, partial(Acrobot, lengths=(1.0, 2.5), masses=(1.0, 1.5))),
    20_000,
    _pair("acrobot"),
    (-500.0, -100.0),
)
_register(
    "lander-gusts",
    "own-lander",
    partial(lander, **WINDY),
    40_000,
    _pair("lander"),
    _scale("lander-windy"),
    held_back=True,
)
_register(
    "lavagap-wide",
    "own-minigrid",
    partial(minigrid, level="LavaGapS7-v0"),
    30_000,
    ("lavagap-ppo-0",),
    (0.0, SOLVED),
)
_register(
    "crossing-lava",
    "own-minigrid",
    partial(minigrid, level="LavaCrossingS9N1-v0"),
    40_000,
    ("lavagap-ppo-0", "crossing-ppo-0"),
    (0.0, SOLVED),
)
_register(
    "crossing-three",
    "own-minigrid",
    partial(minigrid, level="SimpleCrossingS9N3-v0"),
    40_000,
    ("crossing-ppo-0", "lavagap-ppo-0"),
    (0.0, SOLVED),
    held_back=True,
)
_register(
    "doorkey-large",
    "own-minigrid",
    partial(minigrid, level="DoorKey-8x8-v0"),
    40_000,
    ("doorkey-ppo-0",),
    (0.0, SOLVED),
)
_register(
    "obstacles-many",
    "own-minigrid",
    partial(minigrid, level="Dynamic-Obstacles-8x8-v0"),
    40_000,
    ("obstacles-ppo-0",),
    (-1.0, SOLVED),
    held_back=True,
)
_register(
    "rooms-four",
    "own-minigrid",
    partial(minigrid, level="MultiRoom-N4-S5-v0"),
    40_000,
    ("multiroom-ppo-0",),
    (0.0, SOLVED),
)
_register(
    "breakout-ramped",
    "own-minatar",
    partial(minatar, game="breakout"),
    40_000,
    _pair("breakout"),
    _scale("breakout-sticky"),
    held_back=True,
)
_register(
    "asterix-ramped",
    "own-minatar",
    partial(minatar, game="asterix"),
    40_000,
    _pair("asterix"),
    _scale("asterix-sticky"),
    held_back=True,
)
register_task(
    Task(
        "errand-paid",
        "own-errands",
        partial(batched_env, paid_errand),
        40_000,
        helpful=lambda _: [as_source(paid_errand().go_to(place), name=f"to_{place}") for place in "KD"],
        optimum=lambda: paid_errand().optimum(GAMMA),
        discount=GAMMA,
        random=0.05,
        reference=paid_errand().optimum(GAMMA),
        group=PARTIAL,
    )
)
