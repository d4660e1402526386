"""CartPole with physics drawn at random, one task after another, with CAPS and a library on disk."""

import shutil
from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from sb3_caps.caps import CAPS
from sb3_caps.library import PolicyLibrary
from sb3_caps.reuse.evaluation import discounted_returns
from sb3_caps.studies.reuse.worlds.batched import BatchedVecEnv
from sb3_caps.studies.reuse.worlds.classic import CartPole
from sb3_caps.studies.shared.runs import Run

METHODS = ("growing", "pruned", "latest", "finetuning", "scratch")
N_ENVS, EPISODES, EVALUATIONS = 8, 8, 10
MOST, LEVEL = 500.0, 0.9
# A plain network that does what the model does goes to the library. These steps come on top, off the curves
STUDENT_STEPS = 4_000
# Between the seeds of learning and of both kinds of evaluation
APART = 1_000_000
NETWORK: dict[str, Any] = {"net_arch": [64, 64]}


class Curve(BaseCallback):
    """
    Evaluate the model on its way.

    :param world: the task
    :param steps: how many it has
    :param seed: of the episodes
    """

    def __init__(self, world: CartPole, steps: int, seed: int) -> None:
        super().__init__()
        self.world, self.every, self.seed = world, steps // EVALUATIONS, seed
        self.shares: list[float] = []

    def _on_step(self) -> bool:
        if self.num_timesteps >= (len(self.shares) + 1) * self.every and len(self.shares) < EVALUATIONS:
            self.shares.append(worth(self.model, self.world, self.seed))
        return True

    @property
    def steps_to_level(self) -> float:
        """After how many steps an evaluation first reached it; all steps where none did."""
        reached = np.flatnonzero(np.array(self.shares) >= LEVEL)
        return float(self.every * (reached[0] + 1 if len(reached) else EVALUATIONS))


def worth(policy: Any, world: CartPole, seed: int) -> float:
    """
    :param policy: anything with ``predict``
    :param world: a task
    :param seed: of the episodes
    :return: its mean return as a share of the highest one
    """
    return float(discounted_returns(policy, BatchedVecEnv(world, EPISODES, seed), 1.0, EPISODES).mean() / MOST)


def draw_world(rng: np.random.Generator) -> CartPole:
    """
    :param rng: random numbers
    :return: a pole of any length, gravity and force
    """
    length = float(np.exp(rng.uniform(np.log(0.25), np.log(2.0))))
    return CartPole(gravity=float(rng.uniform(5.0, 15.0)), length=length, force=float(rng.uniform(5.0, 15.0)))


def execute(run: Run) -> dict[str, Any]:
    """
    Learn one task after another.

    :param run: what to do
    :return: measures of each task
    """
    config = run.config
    method, seed = config["method"], config["seed"]
    # The same tasks for all methods
    rng = np.random.default_rng(seed)
    worlds = [draw_world(rng) for _ in range(config["tasks"])]
    folder = run.folder / "library"
    shutil.rmtree(folder, ignore_errors=True)
    library = PolicyLibrary(folder)
    found: dict[str, list[float]] = {key: [] for key in ("area", "steps", "final", "size")}
    # What there is for each task: all but fine-tuning leave it as it is
    kept: list[Any] = []
    model: BaseAlgorithm | None = None
    for place, world in enumerate(worlds):
        task_seed = 1000 * seed + place
        env = BatchedVecEnv(world, N_ENVS, task_seed)
        curve = Curve(world, config["steps"], APART + task_seed)
        model = make_model(method, env, library, model, task_seed)
        model.learn(config["steps"], curve, log_interval=10**9)
        kept.append(keep(config, library, model, env, f"task_{place + 1}"))
        found["area"].append(float(np.mean(curve.shares)))
        found["steps"].append(curve.steps_to_level)
        found["final"].append(worth(kept[-1], world, 2 * APART + task_seed))
        found["size"].append(float(len(library)))
    at_end = [worth(policy, worlds[i], 2 * APART + 1000 * seed + i) for i, policy in enumerate(kept)]
    return {**found, "forgetting": float(np.mean(np.array(found["final"]) - at_end))}


def make_model(
    method: str, env: BatchedVecEnv, library: PolicyLibrary, before: BaseAlgorithm | None, seed: int
) -> BaseAlgorithm:
    """
    :param method: one of ``METHODS``
    :param env: environments of the task
    :param library: the policies that there are
    :param before: what learned the task before, None for the first one
    :param seed: of the model
    :return: what learns the task: PPO going on, or CAPS anew, with the library where the method has one
    """
    if method == "finetuning":
        if before is not None:
            before.set_env(env)
            return before
        return PPO("MlpPolicy", env, n_steps=128, policy_kwargs=NETWORK, seed=seed, device="cpu")
    sources = list(library) or None
    # A gradient step for every four steps, as in the reuse suite
    arguments: dict[str, Any] = {"gradient_steps": 4, "policy_kwargs": NETWORK, "device": "cpu"}
    return CAPS("MlpPolicy", env, source_policies=sources, seed=seed, **arguments)


def keep(config: dict[str, Any], library: PolicyLibrary, model: Any, env: BatchedVecEnv, name: str) -> Any:
    """
    Keep what was learned. To a library comes a plain network that does what the model does: one CAPS model within
    another would ask all of its sources again.

    :param config: of the run
    :param library: the policies that there are
    :param model: what has learned the task
    :param env: environments of the task
    :param name: of the policy
    :return: what there is for the task from now on
    """
    if config["method"] in ("finetuning", "scratch"):
        return model
    student = model.distill(env, STUDENT_STEPS, EPISODES, policy_kwargs=NETWORK).model
    if config["method"] == "pruned":
        found = library.consider(student, env, n_eval_episodes=EPISODES, threshold=config["threshold"])
        if not found.add and found.best is not None:
            return library[found.best].policy
    if config["method"] == "latest":
        for other in library.names:
            library.remove(other)
    library.add(student, name)
    return library[name].policy
