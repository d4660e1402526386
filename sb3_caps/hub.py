"""Sharing models on the Hugging Face Hub, with a card that says what was reused."""

import json
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, VecVideoRecorder

from sb3_caps.caps.reports import ReuseReports
from sb3_caps.extras import require
from sb3_caps.reuse.base import PolicyReuse
from sb3_caps.reuse.callbacks import hyperparameters
from sb3_caps.sources import SourceWorth, evaluate_sources, with_masks

# As the Hub shows a video beside the card, and as SB3's own models have their normalisation
VIDEO, NORMALIZER = "replay.mp4", "vec_normalize.pkl"
# Card fields that are YAML, and the text
CARD = """\
# {algorithm} on {env_id}

A model of `sb3_caps`, [Context-Aware Policy Reuse](https://arxiv.org/abs/1806.03793) for Stable-Baselines3. It \
learned {env_id} in {steps:,} steps by reusing {sources}.

## Returns
In {episodes} episodes each, not discounted:

| policy | mean return | standard deviation |
| --- | ---: | ---: |
{returns}

{reuse}## Usage
```python
from sb3_caps import {algorithm}
from sb3_caps.hub import load_from_hub

# Loading a model runs code that its file holds: load only what you trust
model = {algorithm}.load(load_from_hub("{repo_id}"))
```
Or as a source policy for another task: `CAPS(policy, env, source_policies=[load_from_hub("{repo_id}")])`.

## Hyperparameters
```python
{hyperparameters}
```
"""


def push_to_hub(
    model: PolicyReuse,
    repo_id: str,
    env: VecEnv | Any | str,
    env_id: str | None = None,
    n_eval_episodes: int = 10,
    video_length: int = 0,
    private: bool = False,
    commit_message: str = "A model with its card",
    token: str | None = None,
) -> str:
    """
    Upload a model to the Hugging Face Hub, with its source policies, the statistics of its ``VecNormalize``, and a card
    that says what was reused and gives the returns of sources and model.

    :param model: the model
    :param repo_id: the repository, ``user/name``; it is created if it does not exist
    :param env: where returns are measured: an environment as the model sees it, or an id
    :param env_id: what the card calls the environment, by default the id
    :param n_eval_episodes: how many episodes for the model and for each source
    :param video_length: how many steps of a video to record, of an environment with ``render_mode="rgb_array"``; 0 for
        no video
    :param private: whether a new repository can be seen by you alone
    :param commit_message: of the upload
    :param token: of your account, by default that of ``hf auth login``
    :return: the address of the model
    """
    hub = require("huggingface_hub", "hub")
    if n_eval_episodes < 1:
        raise ValueError(f"n_eval_episodes must be at least 1, not {n_eval_episodes}.")
    venv = _as_learned(env, model.get_vec_normalize_env(), video_length > 0)
    name = env_id or _name_of(venv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model.save(folder / _file_name(repo_id))
        normalizer = model.get_vec_normalize_env()
        if normalizer is not None:
            normalizer.save(str(folder / NORMALIZER))
        worths = _worths(model, venv, n_eval_episodes)
        (folder / "README.md").write_text(_card(hub, model, repo_id, name, worths), encoding="utf-8")
        results = {"env_id": name, "n_eval_episodes": n_eval_episodes, "returns": [each._asdict() for each in worths]}
        (folder / "results.json").write_text(json.dumps(results, indent=1))
        if video_length > 0:
            _record(model, venv, video_length, folder / VIDEO)
        api = hub.HfApi(token=token)
        try:
            api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message)
        except OSError:  # what the Hub answered
            raise
        except hub.errors.HTTPError as error:
            raise ConnectionError(f"The Hub at {api.endpoint} cannot be reached: {error}.") from error
        return f"{api.endpoint}/{repo_id}"


def load_from_hub(repo_id: str, revision: str | None = None, token: str | None = None) -> Path:
    """
    Download what ``push_to_hub`` uploaded. This does not load the model: pass the path to ``CAPS.load`` or as a source
    policy, which runs code that the file holds. For models of SB3, ``huggingface_sb3`` has a function of the same name.

    :param repo_id: the repository, ``user/name``
    :param revision: a commit, a branch or a tag
    :param token: of your account, for a private repository
    :return: the path of the model, with its normalisation next to it
    """
    hub = require("huggingface_hub", "hub")
    file_name = _file_name(repo_id)
    folder = hub.snapshot_download(repo_id, revision=revision, token=token, allow_patterns=[file_name, NORMALIZER])
    path = Path(folder, file_name)
    if not path.is_file():
        raise FileNotFoundError(f"{repo_id} has no {file_name}: sb3_caps.hub.push_to_hub did not upload it.")
    return path


def _file_name(repo_id: str) -> str:
    if repo_id.count("/") != 1:
        raise ValueError(f"A repository of the Hub is called user/name, not {repo_id!r}.")
    # As a source policy it is called by this name
    return f"{repo_id.partition('/')[2]}.zip"


def _as_learned(env: VecEnv | Any | str, normalizer: VecNormalize | None, renders: bool) -> VecEnv:
    """:return: one environment that emits what the model learned from, if it was given by its id"""
    if isinstance(env, VecEnv):
        return env
    if isinstance(env, str):
        venv = make_vec_env(env, env_kwargs={"render_mode": "rgb_array"} if renders else None)
    else:
        venv = DummyVecEnv([lambda: Monitor(env)])
    if normalizer is None:
        return venv
    copied: VecNormalize = pickle.loads(pickle.dumps(normalizer))
    copied.set_venv(venv)
    copied.training = copied.norm_reward = False
    return copied


def _name_of(env: VecEnv) -> str:
    spec = env.get_attr("spec", indices=[0])[0]
    return "an environment" if spec is None else str(spec.id)


def _worths(model: PolicyReuse, env: VecEnv, n_eval_episodes: int) -> list[SourceWorth]:
    """What the sources, the model and its learner alone are worth."""
    found = evaluate_sources(model.source_policies, env, n_eval_episodes)
    players: dict[str, Any] = {"this model": model}
    if isinstance(model, ReuseReports) and model.gate.controller.is_source:
        players["its learner alone"] = model.learner()
    for name, player in players.items():
        acting = with_masks(player, env)
        returns, _ = evaluate_policy(acting, env, n_eval_episodes, return_episode_rewards=True, warn=False)
        found.append(SourceWorth(name, float(np.mean(returns)), float(np.std(returns)), n_eval_episodes))
    return found


def _card(hub: Any, model: PolicyReuse, repo_id: str, env_id: str, worths: list[SourceWorth]) -> str:
    algorithm = type(model).__name__
    ours = next(each for each in worths if each.name == "this model")
    result = hub.EvalResult(
        task_type="reinforcement-learning",
        dataset_type=env_id,
        dataset_name=env_id,
        metric_type="mean_reward",
        metric_value=f"{ours.mean:.2f} +/- {ours.std:.2f}",
    )
    data = hub.ModelCardData(
        library_name="stable-baselines3",
        tags=[env_id, "deep-reinforcement-learning", "reinforcement-learning", "policy-reuse", "sb3_caps"],
        model_name=algorithm,
        eval_results=[result],
    )
    sources = [f"`{source.name}` ({source.kind})" for source in model.source_policies]
    rows = [f"| {each.name} | {each.mean:.4g} | {each.std:.3g} |" for each in worths]
    reuse = ""
    if isinstance(model, ReuseReports) and model.num_timesteps > 0:
        reuse = f"## What was reused\nAs training saw it:\n```\n{model.reuse_summary()}\n```\n\n"
    known = hyperparameters(model)
    text = CARD.format(
        algorithm=algorithm,
        env_id=env_id,
        steps=model.num_timesteps,
        sources=", ".join(sources) or "nothing",
        episodes=ours.episodes,
        returns="\n".join(rows),
        reuse=reuse,
        repo_id=repo_id,
        hyperparameters="\n".join(f"{key} = {value!r}" for key, value in known.items()),
    )
    return f"---\n{data.to_yaml()}\n---\n{text}"


def _record(model: PolicyReuse, env: VecEnv, length: int, file: Path) -> None:
    require("moviepy", "hub")
    with tempfile.TemporaryDirectory() as folder:
        recorder = VecVideoRecorder(env, folder, lambda step: step == 0, video_length=length)
        observation: Any = recorder.reset()
        state, starts = None, np.ones(env.num_envs, dtype=bool)
        for _ in range(length):
            actions, state = with_masks(model, env).predict(observation, state, starts, deterministic=True)
            observation, _, starts, _ = recorder.step(actions)
        if recorder.recording:
            recorder._stop_recording()
        shutil.copy(recorder.video_path, file)
