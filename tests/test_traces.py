"""
What small runs do, action by action: code that only moves changes none of it. A change that is meant to change what is
learned renews the traces, ``python -m tests.test_traces``, in a commit that says so.
"""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

import tests.conftest  # noqa: F401  one thread: more of them add numbers up in another order
from sb3_caps import CAPS, OPSTL, PRQL, JumpStart, QDagger
from tests.paper import paper
from tests.toy_world import Corridor, go_left, go_right

FILE = Path(__file__).with_suffix(".json")


def trace(algorithm: type[DQN], policy: str = "MlpPolicy", kind: str = "box", n_envs: int = 1, **arguments: Any) -> str:
    env = make_vec_env(Corridor, n_envs, seed=0, env_kwargs={"kind": kind})
    if algorithm is not DQN:
        arguments["source_policies"] = [go_right, go_left]
    model = algorithm(policy, env, learning_starts=50, buffer_size=1000, batch_size=16, seed=0, **arguments)
    buffer = model.learn(400).replay_buffer
    assert isinstance(buffer, ReplayBuffer)
    return hashlib.sha256(buffer.actions[: buffer.pos].astype("<i8").tobytes()).hexdigest()


RUNS: dict[str, Callable[[], str]] = {
    # SB3's own tells whether this machine computes as the one did that made the file
    "sb3": partial(trace, DQN),
    "vectors": partial(trace, CAPS, actor_kwargs={"interval": 32}),
    "images": partial(trace, CAPS, "CnnPolicy", "image", train_freq=8, safe=False),
    "dictionaries": partial(trace, CAPS, "MultiInputPolicy", "dict", n_envs=2, train_freq=8),
    "several environments": partial(trace, CAPS, n_envs=4, selection_kwargs={"survey_share": 0.0}),
    "without safety": partial(trace, CAPS, safe=False),
    "paper": partial(trace, CAPS, **paper()),
    "prql": partial(trace, PRQL),
    "ops_tl": partial(trace, OPSTL),
    "jump_start": partial(trace, JumpStart),
    "qdagger": partial(trace, QDagger),
}


@pytest.fixture(scope="module")
def known() -> dict[str, str]:
    found: dict[str, str] = json.loads(FILE.read_text())
    if RUNS["sb3"]() != found["sb3"]:
        pytest.skip("SB3's DQN does other things here: another version or processor than that of the traces")
    return found


@pytest.mark.parametrize("name", [name for name in RUNS if name != "sb3"])
def test_the_actions_of_a_run(name: str, known: dict[str, str]) -> None:
    assert RUNS[name]() == known[name], "if it is meant to act otherwise: python -m tests.test_traces"


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: make() for name, make in RUNS.items()}, indent=2) + "\n")
