"""``sb3-caps reproduce <study>``: the studies of the paper."""

import argparse

from sb3_caps.commands import run_module

# name: (module with `add_arguments(parser)` and `run(args)`, one line of help)
STUDIES = {
    "grid": ("sb3_caps.studies.grid.study", "the tabular methods on grid navigation: Figures 1 to 7"),
    "grid-networks": ("sb3_caps.studies.grid_networks.study", "CAPS and DQN on grid navigation, with small networks"),
    "monster-kong": ("sb3_caps.studies.monster_kong.study", "the deep methods on Monster Kong: Figures 8 to 11"),
    "monster-kong-analysis": (
        "sb3_caps.studies.monster_kong.analysis",
        "what the study's settings rest on: exact option values under noise, and what random options see",
    ),
    "sequences": ("sb3_caps.studies.sequences.study", "tasks one after another, with a library that grows"),
    "reuse": (
        "sb3_caps.studies.reuse.study",
        "methods of policy reuse on tasks of many kinds, and what sources are worth",
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
    return run_module(f"sb3-caps reproduce {args.study}", *STUDIES[args.study], args.arguments)
