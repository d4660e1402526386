"""``sb3-caps reproduce <study>``: the studies of the paper."""

import argparse
import importlib

# name: (module with `add_arguments(parser)` and `run(args)`, one line of help)
STUDIES = {
    "grid": ("sb3_caps.experiments.grid_study", "the tabular methods on grid navigation: Figures 1 to 7"),
    "grid-networks": ("sb3_caps.experiments.grid_networks", "CAPS and DQN on grid navigation, with small networks"),
    "monster-kong": ("sb3_caps.experiments.monster_kong_study", "the deep methods on Monster Kong: Figures 8 to 11"),
    "monster-kong-analysis": (
        "sb3_caps.experiments.monster_kong_analysis",
        "what the study's settings rest on: exact option values under noise, and what random options see",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: gets the name of a study; the rest of the arguments is the study's own
    """
    studies = "; ".join(f"{name}: {help_line}" for name, (_, help_line) in STUDIES.items())
    parser.add_argument("study", choices=STUDIES, help=studies)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see `sb3-caps reproduce <study> --help`")


def run(args: argparse.Namespace) -> int:
    """
    :param args: what :func:`add_arguments` asked for
    :return: the exit code
    """
    module_name, help_line = STUDIES[args.study]
    module = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"sb3-caps reproduce {args.study}", description=help_line)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(args.arguments)) or 0)
