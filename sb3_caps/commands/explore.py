"""``sb3-caps explore``: a page for going through episodes of a CAPS model, step by step."""

import argparse
from pathlib import Path

import gymnasium as gym
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

import sb3_caps.envs  # noqa: F401 registers our environments
from sb3_caps.caps import CAPS
from sb3_caps.commands import working_directory_on_path
from sb3_caps.continuous import ContinuousCAPS
from sb3_caps.explorer import page, record
from sb3_caps.explorer.recording import camera_on
from sb3_caps.extras import import_string
from sb3_caps.files.save_util import atomic_write
from sb3_caps.sources import IMPORT_STRING
from sb3_caps.sources.load import model_file, saved_normalizer
from sb3_caps.studies.shared.arguments import check_at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.epilog = "Loading a saved model runs code that it holds: name only those that you trust."
    parser.add_argument("model", type=Path, help="a saved CAPS model, or the folder of a run")
    parser.add_argument(
        "--env",
        help="the id of an environment, or an import string package.module:function of a function that makes one, "
        "for wrappers and arguments of your own (default: that of the run, as it was trained in)",
    )
    parser.add_argument("--episodes", type=int, default=3, help="default: 3")
    parser.add_argument("--seed", type=int, default=0, help="of the environment (default: 0)")
    parser.add_argument("--max-steps", type=int, default=2000, help="leave an episode after so many (default: 2000)")
    parser.add_argument("--no-frames", action="store_true", help="leave the pictures of the environment out")
    parser.add_argument("-o", "--output", type=Path, default=Path("explore.html"), help="default: explore.html")


def run(args: argparse.Namespace) -> int:
    """
    :param args: the arguments of the command
    :return: the exit code
    """
    check_at_least(1, episodes=args.episodes, max_steps=args.max_steps)
    check_at_least(0, seed=args.seed)
    with working_directory_on_path():
        return _explore(args)


def _explore(args: argparse.Namespace) -> int:
    file = model_file(args.model)
    env_name, made = environment(args.env, file, frames=not args.no_frames)
    env, camera = camera_on(made)
    model = load_model(file, env)
    # SB3 may have added a wrapper: images come with channels first
    env = model.get_env() or env
    try:
        recording = record(model, env, camera, args.episodes, args.seed, args.max_steps)
    except gym.error.DependencyNotInstalled as error:
        raise ImportError(f"{error}: install it, or pass --no-frames.") from error
    with atomic_write(args.output) as opened:
        opened.write(page(recording, f"{file.stem} in {env_name}").encode())
    env.close()

    for number, episode in enumerate(recording["episodes"], start=1):
        n_steps = len(episode["rewards"])
        print(f"episode {number}: return {sum(episode['rewards']):g} in {n_steps} steps, {episode['end']}")
    print(f"Written to {args.output} ({args.output.stat().st_size // 1000:,} kB): open it in a browser.")
    return 0


def load_model(file: Path, env: VecEnv) -> CAPS | ContinuousCAPS:
    """
    :param file: of a saved model
    :param env: its environment
    :return: the model, of the algorithm that is for the actions of the environment
    """
    algorithm = ContinuousCAPS if isinstance(env.action_space, gym.spaces.Box) else CAPS
    return algorithm.load(file, env=env, device="cpu")


def environment(given: str | None, model: Path, frames: bool) -> tuple[str, VecEnv]:
    """
    :param given: the id of an environment, or an import string of a function that makes one; None for that of the run
    :param model: the file of the model
    :param frames: whether to draw pictures, where the environment can
    :return: its name, and the environment as the model saw it in training, as far as that was saved
    """
    run = [file.parent for file in model.parent.glob("*/config.yml") if file.with_name("args.yml").is_file()]
    if len(run) == 1 and (given is None or not IMPORT_STRING.fullmatch(given)):
        # Only runs need rl_zoo3
        from sb3_caps.zoo.runs import run_environment

        return run_environment(run[0], given, frames)
    if given is None:
        raise ValueError(f"{model} is not in the folder of a run, which would say in which environment: pass --env.")
    env = make_env(given, frames)
    normalizer = None if isinstance(env, VecNormalize) else saved_normalizer(model, strict=True)
    if normalizer is None:
        return given, env
    normalizer.set_venv(env)
    normalizer.training = normalizer.norm_reward = False
    return given, normalizer


def make_env(given: str, frames: bool) -> VecEnv:
    """
    :param given: the id of an environment, or an import string of a function that makes one
    :param frames: whether to draw pictures, where the environment can
    :return: the environment
    """
    if IMPORT_STRING.fullmatch(given):
        made = import_string(given)()
        if not isinstance(made, (gym.Env, VecEnv)):
            raise ValueError(f"{given} must return an environment, not {type(made).__name__}.")
        return made if isinstance(made, VecEnv) else DummyVecEnv([lambda: made])
    try:
        env = gym.make(given)
        if frames and "rgb_array" in (env.metadata.get("render_modes") or []):
            env.close()
            env = gym.make(given, render_mode="rgb_array")
        return DummyVecEnv([lambda: env])
    except gym.error.Error as error:
        raise ValueError(str(error)) from error
