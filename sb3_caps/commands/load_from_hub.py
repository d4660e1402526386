"""``sb3-caps load_from_hub``: download a model from the Hugging Face Hub."""

import argparse

from sb3_caps.hub import load_from_hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.epilog = "The path is a source policy, and CAPS.load takes it. Both run code that the file holds."
    parser.add_argument("repo_id", help="the repository that push_to_hub made, user/name")
    parser.add_argument("--revision", help="a commit, a branch or a tag")


def run(args: argparse.Namespace) -> int:
    """
    :param args: the arguments of the command
    :return: the exit code
    """
    print(load_from_hub(args.repo_id, args.revision))
    return 0
