"""Tasks whose sources know a part: the best of them is worth a sixth to two thirds of the reference."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.settings import settings
from sb3_caps.sources import as_source
from sb3_caps.studies.reuse.catalogue import GAMMA, MAPS, batched_env, load_trained, minatar, minigrid
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
    register_task(
        Task(
            name,
            kind,
            make_env,
            steps,
            helpful,
            random=low,
            reference=high,
            group=PARTIAL,
            fine_tunes=True,
            **kwargs,
        )
    )


def _pair(family: str) -> tuple[str, str]:
    return f"{family}-ppo-0", f"{family}-ppo-1"


def _scale(name: str) -> tuple[float, float]:
    """That of a task with the same rules."""
    return references()[name]["random"], references()[name]["reference"]


def _register_level(name: str, level: str, *families: str, **kwargs: Any) -> None:
    """A level of MiniGrid, with models of easier ones."""
    sources = tuple(f"{family}-ppo-0" for family in families)
    _register(name, "own-minigrid", partial(minigrid, level=level), 40_000, sources, (0.0, SOLVED), **kwargs)


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
    partial(batched_env, partial(CartPole, gravity=12.0, force=2.0)),
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
_register_level("crossing-lava", "LavaCrossingS9N1-v0", "lavagap", "crossing")
_register_level("crossing-lava-two", "LavaCrossingS9N2-v0", "lavagap", "crossing", held_back=True)
_register_level("crossing-three", "SimpleCrossingS9N3-v0", "crossing", "lavagap", held_back=True)
_register_level("rooms-four", "MultiRoom-N4-S5-v0", "multiroom", "crossing")
for _game in ("breakout", "asterix"):
    _register(
        f"{_game}-ramped",
        "own-minatar",
        partial(minatar, game=_game),
        40_000,
        _pair(_game),
        _scale(f"{_game}-sticky"),
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
