"""The ``sb3-caps`` command: each subcommand is a module that is imported only when it is called."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

# name: (where it is, one line of help). A module has `add_arguments(parser)` and `run(args)`;
# a function, written `module:function`, takes the arguments as they are, for commands that parse them elsewhere.
COMMANDS = {
    "demo": ("sb3_caps.experiments.demo", "learn a grid task with CAPS and with DQN, in under three minutes"),
    "train": ("sb3_caps.zoo:train", "train an agent with the settings of a config (rl_zoo3)"),
    "enjoy": ("sb3_caps.zoo:enjoy", "watch a trained agent (rl_zoo3)"),
    "optimize": ("sb3_caps.zoo:optimize", "optimise hyperparameters, with any number of workers (rl_zoo3)"),
    "plot": ("sb3_caps.commands.plot", "draw the learning curves of any runs side by side"),
    "sources": ("sb3_caps.commands.sources", "inspect source policies and see whether they fit an environment"),
    "play": ("sb3_caps.envs.play", "play an environment yourself"),
    "reproduce": ("sb3_caps.experiments.reproduce", "run a study of the paper and draw its figures"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one subcommand.

    :param argv: the arguments, those of the process by default
    :return: the exit code: 2 for what the user can mend, with one line that says how
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(prog="sb3-caps", description="Context-Aware Policy Reuse for Stable-Baselines3.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (_, help_line) in COMMANDS.items():
        subparsers.add_parser(name, help=help_line, add_help=False)
    command = parser.parse_args(argv[:1]).command
    # Import strings may name modules of the working directory, as they may for `python -m`
    sys.path.append(os.getcwd())

    try:
        return _run(command, argv[1:])
    except (ValueError, OSError, ImportError) as error:
        print(f"sb3-caps {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"sb3-caps {command}: interrupted", file=sys.stderr)
        return 130


def _run(command: str, argv: list[str]) -> int:
    target, help_line = COMMANDS[command]
    module_name, _, function_name = target.partition(":")
    module = importlib.import_module(module_name)
    if function_name:
        return int(getattr(module, function_name)(argv) or 0)
    parser = argparse.ArgumentParser(prog=f"sb3-caps {command}", description=help_line)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(argv)) or 0)


if __name__ == "__main__":
    sys.exit(main())
