"""What a replay buffer of a million transitions of 84x84x2 takes, in memory and in time."""

import gc
import resource
import statistics
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import configure

from benchmarks.report import Result, clock, interleaved
from benchmarks.throughput import pixels, sources, trained
from sb3_caps import CAPS
from sb3_caps.extras import require
from sb3_caps.replay.buffers import OptionReplayBuffer
from sb3_caps.replay.observation_stores import CompressedItems

MILLION = 1_000_000
N_SOURCES = 3


def recording(steps: int) -> list[tuple[Any, ...]]:
    """
    :param steps: how many
    :return: what Monster Kong emits for random actions, as SB3 hands it to a replay buffer
    """
    env = pixels(1)
    env.seed(0)
    rng, observations = np.random.default_rng(0), _channels_first(env.reset())
    recorded = []
    for _ in range(steps):
        actions = rng.integers(6, size=1)
        new, rewards, dones, infos = env.step(actions)
        following = infos[0]["terminal_observation"][None] if dones[0] else new
        recorded.append((observations, _channels_first(following), actions, rewards, dones, infos))
        observations = _channels_first(new)
    return recorded


def _channels_first(images: Any) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(images, -1, 1))


def ours(**arguments: Any) -> OptionReplayBuffer:
    """:return: our buffer for as many transitions as are recorded"""
    space, actions = spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(6)
    return OptionReplayBuffer(4000, space, actions, "cpu", n_sources=N_SOURCES, **arguments)


def fill(buffer: OptionReplayBuffer, recorded: list[tuple[Any, ...]]) -> float:
    """:return: seconds to add a step, the median"""
    option_actions = np.zeros((1, N_SOURCES), dtype=np.int64)
    taken = []
    for observation, following, actions, rewards, dones, infos in recorded:
        begin = clock()
        buffer.add(
            observation,
            following,
            actions,
            rewards,
            dones,
            infos,
            option_actions=option_actions,
            next_option_actions=option_actions,
        )
        taken.append(clock() - begin)
    return statistics.median(taken)


def bytes_of(buffer: OptionReplayBuffer) -> float:
    """:return: the memory of a buffer for each of its transitions, what was set aside included"""
    arrays = [value for value in vars(buffer).values() if isinstance(value, np.ndarray)]
    total = sum(array.nbytes for array in arrays)
    for store in buffer.stores.values():
        total += sum(value.nbytes for value in vars(store).values() if isinstance(value, np.ndarray))
        for items in (store.frames, store.aside):
            if isinstance(items, CompressedItems):
                # A bytes object has a header of 33 bytes, and is rounded up to 16
                total += items.blobs.nbytes + sum(-(-(len(blob) + 33) // 16) * 16 for blob in items.blobs)
            else:
                total += items.data.nbytes
    return total / buffer.size()


def measure(full: bool) -> list[Result]:
    """
    :param full: measure for longer
    :return: gigabytes of a million transitions, beside SB3's; microseconds to add and milliseconds to sample
    """
    recorded = recording(4000)
    space, actions = spaces.Box(0, 255, (2, 84, 84), np.uint8), spaces.Discrete(6)
    theirs = ReplayBuffer(100, space, actions, "cpu")
    plain_bytes = (theirs.observations.nbytes + theirs.next_observations.nbytes) / 100
    kinds: dict[str, dict[str, Any]] = {
        "each observation once": {},
        "each frame once": {"optimize_memory_usage": True},
        "zlib": {"optimize_memory_usage": True, "compression": "zlib"},
    }
    if _is_installed("lz4.block"):
        kinds["lz4"] = {"optimize_memory_usage": True, "compression": "lz4"}
    results = []
    step = _training_step(rounds=9 if full else 5)
    for kind, arguments in kinds.items():
        buffer = ours(**arguments)
        adding = fill(buffer, recorded)
        gigabytes = bytes_of(buffer) * MILLION / 1e9
        name = f"Replay memory of a million 84x84x2, {kind}, beside SB3"
        results.append(
            Result(name, gigabytes, plain_bytes * MILLION / 1e9, "GB", plain_bytes * MILLION / 1e9 / gigabytes)
        )
        [sampling] = interleaved([partial(buffer.sample, 32)], 50)
        results.append(
            Result(
                "... sampling 32, beside a tenth of a training step",
                sampling * 1e3,
                step * 100,
                "ms",
                step / 10 / sampling,
            )
        )
        results.append(Result("... adding a step, beside 50 µs", adding * 1e6, 50, "µs", 50e-6 / adding))
        del buffer
        gc.collect()
    return [*results, defaults(recorded)] if full else results


def defaults(recorded: list[tuple[Any, ...]]) -> Result:
    """
    :param recorded: steps to fill the buffer with, again and again
    :return: what ``CAPS("CnnPolicy", env)`` takes, with its defaults, when the buffer of a million transitions is full
    """
    model = CAPS("CnnPolicy", pixels(1))
    for step in range(MILLION):
        observation, following, actions, rewards, dones, infos = recorded[step % len(recorded)]
        model.replay_buffer.add(observation, following, actions, rewards, dones, infos)
    assert model.replay_buffer.full
    model.set_logger(configure(None, []))
    model.train(gradient_steps=10, batch_size=model.batch_size)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return Result('CAPS("CnnPolicy", env) after a million steps, the process', gigabytes, 24, "GB", 24 / gigabytes)


def _training_step(rounds: int) -> float:
    """Seconds for a gradient step of CAPS with three sources."""
    model = trained(CAPS, "CnnPolicy", pixels(1), source_policies=sources("CnnPolicy", pixels, 3))
    return interleaved([lambda: model.train(gradient_steps=4, batch_size=32)], rounds)[0] / 4


def _is_installed(module: str) -> bool:
    try:
        require(module, "compression")
    except ImportError:
        return False
    return True
