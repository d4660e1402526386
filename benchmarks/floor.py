"""Where the time goes, and what the passes of the networks alone would take."""

from collections.abc import Callable
from typing import Any, cast

import torch as th
from stable_baselines3.dqn.policies import DQNPolicy

from benchmarks.report import clock, interleaved
from benchmarks.throughput import features, pixels, sources, trained
from sb3_caps import CAPS

PARTS = {
    "_choose": "acting: network, options",
    "_store": "storing, and asking sources",
    "train": "gradient steps",
    "env.step": "environment",
    "options.actions": "sources (in storing)",
    "replay_buffer.sample": "sampling (in gradient steps)",
}


def profile(policy: str, make_env: Callable[[int], Any], n_envs: int, steps: int) -> str:
    """
    :param policy: "MlpPolicy" or "CnnPolicy"
    :param make_env: makes environments
    :param n_envs: how many
    :param steps: how many of them to take
    :return: microseconds for each environment step, by part, in Markdown
    """
    model = trained(CAPS, policy, make_env(n_envs), source_policies=sources(policy, make_env, 3))
    assert isinstance(model, CAPS)
    passes = _passes_alone(model) / (4 * n_envs)
    spent = dict.fromkeys(PARTS, 0.0)
    for name in PARTS:
        _time_calls(model, name, spent)
    begin = clock()
    model.learn(steps, reset_num_timesteps=False)
    total = clock() - begin
    rows = [
        f"| {PARTS[name]} | {seconds / steps * 1e6:,.0f} | {seconds / total:.0%} |" for name, seconds in spent.items()
    ]
    rows.append(f"| all | {total / steps * 1e6:,.0f} | 100% |")
    rows.append(f"| passes alone, of all screens anew | {passes * 1e6:,.0f} | {passes * steps / total:.0%} |")
    return "\n".join(
        [f"| {policy}, 3 sources, environments: {n_envs} | µs/step | share |", "| --- | ---: | ---: |", *rows]
    )


def _time_calls(model: CAPS, name: str, spent: dict[str, float]) -> None:
    owner: Any = model
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    function = getattr(owner, last)

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = clock()
        result = function(*args, **kwargs)
        spent[name] += clock() - begin
        return result

    setattr(owner, last, timed)


def _passes_alone(model: CAPS) -> float:
    """
    Seconds for the passes of four steps, to act with and of a gradient step, with each network for each observation:
    what cannot be done without, if no observation comes back.
    """
    n_envs, data = model.n_envs, model.replay_buffer.sample(32)
    networks = [model.q_net, *(cast(DQNPolicy, source.policy).q_net for source in model.options.sources)]
    assert isinstance(data.observations, th.Tensor)
    states, successors = data.observations[:32], data.observations[32:]

    def passes() -> None:
        with th.no_grad():
            for network in networks:
                for _ in range(4):
                    network(states[:n_envs])
            model.q_net(successors)
            model.q_net_target(successors)
        model.q_net(states).values.sum().backward()

    return interleaved([passes], 15)[0]


def measure(full: bool) -> str:
    """
    :param full: measure for longer
    :return: profiles in Markdown
    """
    factor = 4 if full else 1
    return "\n\n".join(
        [
            profile("CnnPolicy", pixels, 1, 160 * factor),
            profile("CnnPolicy", pixels, 8, 640 * factor),
            profile("MlpPolicy", features, 1, 1000 * factor),
        ]
    )
