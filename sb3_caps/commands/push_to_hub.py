"""``sb3-caps push_to_hub``: share a model on the Hugging Face Hub."""

import argparse
from pathlib import Path

from sb3_caps.commands import working_directory_on_path
from sb3_caps.commands.explore import environment, load_model
from sb3_caps.hub import push_to_hub
from sb3_caps.sources.load import model_file
from sb3_caps.studies.shared.arguments import check_at_least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.epilog = (
        "Log in once with `hf auth login`. Loading a saved model runs code that it holds: name only those that you "
        "trust."
    )
    parser.add_argument("model", type=Path, help="a saved CAPS model, or the folder of a run")
    parser.add_argument("repo_id", help="the repository, user/name: it is made where it is missing")
    parser.add_argument("--env", help="where returns are measured, see explore (default: that of the run)")
    parser.add_argument("--episodes", type=int, default=10, help="for the model and each source (default: 10)")
    parser.add_argument("--video", type=int, default=0, metavar="STEPS", help="record so many steps (default: none)")
    parser.add_argument("--private", action="store_true", help="a new repository can be seen by you alone")


def run(args: argparse.Namespace) -> int:
    """
    :param args: the arguments of the command
    :return: the exit code
    """
    check_at_least(1, episodes=args.episodes)
    check_at_least(0, video=args.video)
    with working_directory_on_path():
        file = model_file(args.model)
        env_id, made = environment(args.env, file, frames=args.video > 0)
        model = load_model(file, made)
        # SB3 may have added a wrapper: images come with channels first
        env = model.get_env() or made
        address = push_to_hub(model, args.repo_id, env, env_id, args.episodes, args.video, args.private)
        env.close()
    print(f"Uploaded to {address}")
    return 0
