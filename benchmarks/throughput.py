"""Environment steps a second, beside SB3's DQN on the same environments with the same network."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

import sb3_caps.envs  # noqa: F401  registers the environments
from benchmarks.report import Result, interleaved
from sb3_caps import CAPS, PAPER, SourceFeatures, VecSourceFeatures
from sb3_caps.caps.arguments import DQN_DEFAULTS
from sb3_caps.envs.monster_kong.vec_env import MonsterKongVecEnv

MakeEnv = Callable[[int], VecEnv]
# Steps before anything is measured: in the first ones all that the agent sees is new to it. Each of many environments
# does fewer of them, so that it takes more.
WARM_UP, LONG_WARM_UP = 2_000, 10_000


def pixels(n_envs: int) -> VecEnv:
    """Monster Kong, 84x84x2."""
    return MonsterKongVecEnv(n_envs)


class NewScreens(VecEnvWrapper):
    """
    No screen comes twice, as in games with a clock or a camera: a row of each is noise.

    :param venv: the environments
    """

    def reset(self) -> VecEnvObs:
        """:return: the first observations"""
        return self._with_noise(self.venv.reset())

    def step_wait(self) -> VecEnvStepReturn:
        """:return: the next observations, and the rest"""
        observations, rewards, dones, infos = self.venv.step_wait()
        return self._with_noise(observations), rewards, dones, infos

    def _with_noise(self, observations: VecEnvObs) -> VecEnvObs:
        assert isinstance(observations, np.ndarray)
        observations = observations.copy()
        observations[:, 0] = np.random.randint(256, size=observations[:, 0].shape)
        return observations


def new_screens(n_envs: int) -> VecEnv:
    """The same with screens that never come back."""
    return NewScreens(pixels(n_envs))


def features(n_envs: int) -> VecEnv:
    """Monster Kong as a vector."""
    return MonsterKongVecEnv(n_envs, observation="features")


def grid(n_envs: int) -> VecEnv:
    """The paper's rooms."""
    return make_vec_env("sb3_caps/GridTarget-v0", n_envs, seed=0)


def sources(policy: str, make_env: MakeEnv, number: int) -> list[DQN]:
    """
    :param policy: of which kind
    :param make_env: makes the environments they fit
    :param number: how many
    :return: source policies that have learned nothing: what they do makes no difference to the time they take
    """
    return [DQN(policy, make_env(1), buffer_size=1, seed=seed) for seed in range(number)]


def trained(algorithm: type[DQN], policy: str, env: VecEnv, warm_up: int = WARM_UP, **arguments: Any) -> DQN:
    """
    :param algorithm: CAPS or DQN
    :param policy: "MlpPolicy" or "CnnPolicy"
    :param env: its environments
    :param warm_up: steps before learning starts
    :param arguments: others
    :return: a model in the middle of its training, with DQN's batches of 32 and one update every 4 steps
    """
    arguments = {**DQN_DEFAULTS, **arguments}
    model = algorithm(policy, env, buffer_size=20_000, learning_starts=warm_up, seed=0, **arguments)
    return model.learn(warm_up + 16 * env.num_envs)


def rates(models: Sequence[DQN], steps: int, rounds: int) -> list[float]:
    """
    :param models: to train in turns
    :param steps: environment steps in each round
    :param rounds: number of rounds
    :return: for each its environment steps in a second
    """
    runs = [lambda model=model: model.learn(steps, reset_num_timesteps=False) for model in models]
    return [steps / seconds for seconds in interleaved(runs, rounds)]


def against_dqn(name: str, policy: str, make_env: MakeEnv, n_envs: int, steps: int, rounds: int) -> list[Result]:
    """
    :param name: of the environments
    :param policy: "MlpPolicy" or "CnnPolicy"
    :param make_env: makes the environments
    :param n_envs: how many
    :param steps: environment steps in each round
    :param rounds: number of rounds
    :return: CAPS with three sources beside DQN, with its defaults and with the paper's settings
    """
    given = sources(policy, make_env, 3)
    settings: dict[str, dict[str, Any]] = {"defaults": {}, "paper": PAPER}
    ours = [trained(CAPS, policy, make_env(n_envs), source_policies=given, **each) for each in settings.values()]
    *found, theirs = rates([*ours, trained(DQN, policy, make_env(n_envs))], steps, rounds)
    label = f"{name}, {n_envs} environment{'s' if n_envs > 1 else ''}, 3 sources"
    return [
        Result(f"{label}, {setting}, beside DQN", rate, theirs, "steps/s", rate / theirs)
        for setting, rate in zip(settings, found, strict=True)
    ]


def by_source_features(n_envs: int, steps: int, rounds: int) -> Result:
    """
    :param n_envs: number of environments
    :param steps: environment steps in each round
    :param rounds: number of rounds
    :return: CAPS with a small network behind those of its sources, beside DQN with a convolutional one
    """
    env = pixels(n_envs)
    features = SourceFeatures(sources("CnnPolicy", pixels, 3), _seen(env, 300))
    given: dict[str, Any] = {"source_policies": features.policies}
    ours = trained(CAPS, "MlpPolicy", VecSourceFeatures(env, features), **given)
    rate, theirs = rates([ours, trained(DQN, "CnnPolicy", pixels(n_envs))], steps, rounds)
    label = f"Monster Kong pixels, {n_envs} environment{'s' if n_envs > 1 else ''}, source features, beside DQN"
    return Result(label, rate, theirs, "steps/s", rate / theirs)


def _seen(env: VecEnv, number: int) -> np.ndarray:
    """Observations of random steps."""
    observations: list[Any] = [env.reset()]
    while len(observations) * env.num_envs < number:
        observations.append(env.step(np.random.randint(6, size=env.num_envs))[0])
    return np.concatenate(observations)


def measure(full: bool) -> list[Result]:
    """
    :param full: measure for longer
    :return: CAPS with three sources beside DQN, for images and vectors
    """
    rounds = 9 if full else 5
    results: list[Result] = []
    for n_envs, steps in ((1, 160), (8, 640)):
        results += against_dqn("Monster Kong pixels", "CnnPolicy", pixels, n_envs, steps, rounds)
        results.append(by_source_features(n_envs, steps, rounds))
        results += against_dqn("No screen twice", "CnnPolicy", new_screens, n_envs, steps, rounds)
    for name, make_env in (("Grid", grid), ("Monster Kong features", features)):
        for n_envs, steps in ((1, 1000), (16, 8000)):
            results += against_dqn(name, "MlpPolicy", make_env, n_envs, steps, rounds)
    return results


def growth(full: bool) -> list[Result]:
    """
    :param full: all numbers of sources and of environments
    :return: how speed changes with more CNN sources, and with more environments
    """
    rounds, numbers = (7, (0, 1, 3, 8, 16)) if full else (3, (1, 16))
    models = [
        trained(CAPS, "CnnPolicy", pixels(1), source_policies=sources("CnnPolicy", pixels, number))
        for number in numbers
    ]
    found = dict(zip(numbers, rates(models, 80, rounds), strict=True))
    results = [
        Result(f"{n} CNN sources, beside 1", rate, found[1], "steps/s", rate / found[1])
        for n, rate in found.items()
        if n != 1
    ]
    if full:
        results += _growth_with_environments(rounds)
    return results


def _growth_with_environments(rounds: int) -> list[Result]:
    speed: dict[tuple[str, int], float] = {}
    for n_envs in (1, 8, 32):
        given = sources("CnnPolicy", pixels, 3)
        ours = trained(CAPS, "CnnPolicy", pixels(n_envs), LONG_WARM_UP, source_policies=given)
        theirs = trained(DQN, "CnnPolicy", pixels(n_envs), LONG_WARM_UP)
        both = rates([ours, theirs], int(160 * np.sqrt(n_envs) // 32 * 32), rounds)
        speed["ours", n_envs], speed["theirs", n_envs] = both
    results = []
    for n_envs in (8, 32):
        ours_growth = speed["ours", n_envs] / speed["ours", 1]
        theirs_growth = speed["theirs", n_envs] / speed["theirs", 1]
        name = f"{n_envs} environments instead of 1, 3 CNN sources, beside DQN"
        results.append(Result(name, ours_growth, theirs_growth, "times", ours_growth / theirs_growth))
    return results
