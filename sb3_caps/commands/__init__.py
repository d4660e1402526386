"""The ``sb3-caps`` command: each subcommand is a module that is imported only when it is called."""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sb3_caps import __version__

# name: (where it is, one line of help). A module has `add_arguments(parser)` and `run(args)`;
# a function, written `module:function`, takes the arguments as they are, for commands that parse them elsewhere.
COMMANDS = {
    "demo": ("sb3_caps.studies.demo", "learn a grid task with CAPS and with DQN, in under three minutes"),
    "train": ("sb3_caps.zoo.commands:train", "train an agent with the settings of a config (rl_zoo3)"),
    "enjoy": ("sb3_caps.zoo.commands:enjoy", "watch a trained agent (rl_zoo3)"),
    "record_video": ("sb3_caps.zoo.commands:record_video", "record a video of a trained agent (rl_zoo3)"),
    "optimize": ("sb3_caps.zoo.commands:optimize", "optimise hyperparameters, with any number of workers (rl_zoo3)"),
    "plot_train": ("sb3_caps.zoo.plots:plot_train", "draw the training episodes of an algorithm (rl_zoo3)"),
    "all_plots": ("sb3_caps.zoo.plots:all_plots", "draw and tabulate the evaluations of algorithms (rl_zoo3)"),
    "plot_from_file": ("sb3_caps.zoo.plots:plot_from_file", "draw what all_plots wrote (rl_zoo3)"),
    "explore": ("sb3_caps.commands.explore", "write a page for going through episodes of CAPS, step by step"),
    "plot": ("sb3_caps.commands.plot", "draw the learning curves of any runs side by side"),
    "sources": ("sb3_caps.commands.sources", "inspect source policies, or train the usual ones"),
    "library": ("sb3_caps.commands.library", "keep policies in a folder that grows from task to task"),
    "push_to_hub": ("sb3_caps.commands.push_to_hub", "share a model on the Hugging Face Hub, with a card"),
    "load_from_hub": ("sb3_caps.commands.load_from_hub", "download such a model, and print its path"),
    "play": ("sb3_caps.commands.play", "play an environment yourself"),
    "reproduce": ("sb3_caps.commands.reproduce", "run a study of the paper and draw its figures"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one subcommand.

    :param argv: the arguments, those of the process by default
    :return: the exit code: 2 for what the user can fix, with one line that says how
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="sb3-caps", description="Context-Aware Policy Reuse for Stable-Baselines3.")
    parser.add_argument("--version", action="version", version=f"sb3-caps {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (_, help_line) in COMMANDS.items():
        subparsers.add_parser(name, help=help_line, add_help=False)
    command = parser.parse_args(argv[:1]).command

    try:
        _check_working_directory()
        with _terminated_as_interrupted():
            return run_module(f"sb3-caps {command}", *COMMANDS[command], argv[1:])
    except (ValueError, OSError, ImportError) as error:
        print(f"sb3-caps {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"sb3-caps {command}: interrupted", file=sys.stderr)
        return 130


def run_module(program: str, target: str, help_line: str, argv: Sequence[str]) -> int:
    """
    Run a command where it is.

    :param program: what the user called
    :param target: a module with ``add_arguments`` and ``run``, or ``module:function``
    :param help_line: what it does
    :param argv: its arguments
    :return: the exit code
    """
    module_name, _, function_name = target.partition(":")
    module = importlib.import_module(module_name)
    if function_name:
        with working_directory_on_path():
            return int(getattr(module, function_name)(argv) or 0)
    parser = argparse.ArgumentParser(prog=program, description=help_line)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(argv)) or 0)


@contextmanager
def working_directory_on_path() -> Iterator[None]:
    """
    Let import strings, configs and saved models name modules of the working directory, as they may for ``python -m``.

    Only while these are used, and after the imports of a command: of what torch and others look for and do not find, a
    file that lies there would take the place.
    """
    before = sys.path[:]
    sys.path.append(os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def _check_working_directory() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise FileNotFoundError("the working directory is gone: change to another one.") from error


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: what was learned so far is saved before the process ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
