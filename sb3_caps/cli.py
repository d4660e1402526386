"""The ``sb3-caps`` command: each subcommand is a module that is imported only when it is called."""

import argparse
import importlib
import sys
from collections.abc import Sequence

# name: (module with `add_arguments(parser)` and `run(args)`, one line of help)
COMMANDS = {
    "demo": ("sb3_caps.experiments.demo", "learn a grid task with CAPS and with DQN, in under three minutes"),
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

    module_name, help_line = COMMANDS[command]
    try:
        module = importlib.import_module(module_name)
        command_parser = argparse.ArgumentParser(prog=f"sb3-caps {command}", description=help_line)
        module.add_arguments(command_parser)
        return int(module.run(command_parser.parse_args(argv[1:])) or 0)
    except (ValueError, OSError, ImportError) as error:
        print(f"sb3-caps {command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
