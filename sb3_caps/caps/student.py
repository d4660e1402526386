"""A policy of SB3's own that does what a model does, without asking any source: what people deploy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs
from stable_baselines3.common.vec_env import VecEnv

from sb3_caps.caps.policies import CAPSPolicy, CnnPolicy
from sb3_caps.reuse.checks import check_whole_number
from sb3_caps.sources import Observations

# Of imitation: rounds of steps and of learning from all so far, and how the network learns
N_ROUNDS, N_EPOCHS, BATCH_SIZE, LEARNING_RATE = 5, 10, 128, 1e-3


@dataclass(frozen=True)
class Student:
    """
    What came of teaching.

    :param model: a PPO model that needs neither this package nor a source, and can be trained further
    :param mean_reward: its mean return, in the environment that it was taught in
    :param error: how far off that mean may be
    :param teacher_mean_reward: that of the model that taught it
    :param teacher_error: how far off that mean may be
    """

    model: PPO
    mean_reward: float
    error: float
    teacher_mean_reward: float
    teacher_error: float

    def __str__(self) -> str:
        return (
            f"student {self.mean_reward:.4g} ± {self.error:.2g}, "
            f"teacher {self.teacher_mean_reward:.4g} ± {self.teacher_error:.2g}"
        )


def teach(teacher: Any, env: GymEnv, n_steps: int, n_eval_episodes: int, **kwargs: Any) -> Student:
    """
    Let a PPO model imitate another model: at first in the states that the teacher comes to, then in those that the
    student comes to itself (DAgger, Ross and others 2011).

    :param teacher: a model with ``predict``
    :param env: environments to act in
    :param n_steps: how many steps to learn from
    :param n_eval_episodes: of both, at the end
    :param kwargs: arguments of PPO, for example ``policy_kwargs`` for a smaller network
    :return: the student, with its return beside the teacher's
    """
    check_whole_number("n_steps", n_steps, at_least=N_ROUNDS)
    check_whole_number("n_eval_episodes", n_eval_episodes, at_least=1)
    student = PPO(_policy_name(teacher.policy), env, **{"seed": teacher.seed, "device": teacher.device, **kwargs})
    vec_env = student.get_env()
    assert vec_env is not None
    if vec_env.has_attr("action_masks"):
        raise ValueError("The environment has action masks, which PPO does not know: deploy the model itself.")
    assert isinstance(student.policy, ActorCriticPolicy)
    optimizer = th.optim.Adam(student.policy.parameters(), lr=LEARNING_RATE)
    rng = np.random.default_rng(teacher.seed)
    observations: list[Observations] = []
    actions: list[np.ndarray] = []
    for i in range(N_ROUNDS):
        n_rows = -(-n_steps // (N_ROUNDS * vec_env.num_envs))
        _play(teacher, student if i else teacher, vec_env, n_rows, observations, actions)
        _imitate(student.policy, optimizer, _joined(observations), np.concatenate(actions), rng)
    returns = []
    for each in (student, teacher):
        found, _ = evaluate_policy(each, vec_env, n_eval_episodes, return_episode_rewards=True, warn=False)
        returns += [float(np.mean(found)), float(np.std(found) / np.sqrt(np.size(found)))]
    return Student(student, *returns)


def _play(
    teacher: Any, acting: Any, env: VecEnv, n_rows: int, observations: list[Observations], actions: list[np.ndarray]
) -> None:
    """Let one of them act, and note what the teacher would do."""
    obs: Any = env.reset()
    state, starts = None, np.ones(env.num_envs, dtype=bool)
    for _ in range(n_rows):
        wanted, state = teacher.predict(obs, state=state, episode_start=starts, deterministic=True)
        observations.append({key: each.copy() for key, each in obs.items()} if isinstance(obs, dict) else obs.copy())
        actions.append(wanted)
        taken = wanted if acting is teacher else acting.predict(obs, deterministic=True)[0]
        obs, _, starts, _ = env.step(taken)


def _imitate(
    policy: ActorCriticPolicy,
    optimizer: th.optim.Optimizer,
    observations: Observations,
    actions: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Make what the teacher did likelier."""
    policy.set_training_mode(True)
    for _ in range(N_EPOCHS):
        for rows in np.array_split(rng.permutation(len(actions)), -(-len(actions) // BATCH_SIZE)):
            part: Any = (
                {k: v[rows] for k, v in observations.items()} if isinstance(observations, dict) else observations[rows]
            )
            obs: PyTorchObs = policy.obs_to_tensor(part)[0]
            log_probs = policy.get_distribution(obs).log_prob(th.as_tensor(actions[rows], device=policy.device))
            loss = -log_probs.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _joined(observations: list[Observations]) -> Observations:
    first = observations[0]
    if isinstance(first, dict):
        return {key: np.concatenate([each[key] for each in observations]) for key in first}
    return np.concatenate(observations)  # type: ignore[arg-type]


def _policy_name(policy: CAPSPolicy) -> str:
    if isinstance(policy.observation_space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if isinstance(policy, CnnPolicy) else "MlpPolicy"
