"""``sb3-caps library``: policies that grow from task to task, in a folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sb3_caps.commands import working_directory_on_path

if TYPE_CHECKING:
    # Imported where it is used: torch takes seconds, and help does without it
    from sb3_caps.library import PolicyLibrary

FOLDER = Path("library")
COLUMNS = "{:<24} {:<18} {:<32} {:>16}  {:<10} {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.epilog = "Loading a saved model runs code that its file holds: add and consider only those that you trust."
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    helps = {
        "list": "what is in it",
        "add": "add saved models or exports",
        "remove": "remove policies by name",
        "check": "read every policy; the exit code is 1 if one is damaged",
        "consider": "tell whether saved models are worth adding",
        "prune": "suggest what to remove, from the returns that are known",
    }
    for name, help_line in helps.items():
        action = actions.add_parser(name, help=help_line)
        action.add_argument("--folder", type=Path, default=FOLDER, help=f"of the library (default: {FOLDER})")
        if name in ("add", "consider"):
            action.add_argument("policies", nargs="+", metavar="path")
            action.add_argument("--env", required=name == "consider", help="the task that they have learned")
            episodes = 10 if name == "consider" else 0
            action.add_argument("--episodes", type=int, default=episodes, help="in how many to try each there")
        if name == "add":
            action.add_argument("--name", help="of the policy, where it is one")
        if name == "consider":
            action.add_argument("--threshold", type=float, default=0.9, help="δ of PLPR's rule (default: 0.9)")
        if name == "remove":
            action.add_argument("names", nargs="+", metavar="name")
        if name == "prune":
            action.add_argument("--tolerance", type=float, default=0.0, help="how much lower a return may be")


def run(args: argparse.Namespace) -> int:
    """
    :param args: the arguments of the command
    :return: 1 if a policy is damaged
    """
    from sb3_caps.library import PolicyLibrary

    library = PolicyLibrary(args.folder)
    if args.action == "list":
        list_policies(library)
    elif args.action == "check":
        errors = library.check()
        for name, error in errors.items():
            print(f"{name}: {error}")
        if not errors:
            print(f"{len(library)} policies can be read")
        return 1 if errors else 0
    elif args.action == "remove":
        for name in args.names:
            if name not in library:
                raise ValueError(f"there is no policy '{name}' in {args.folder}: it has {', '.join(library.names)}.")
            library.remove(name)
    elif args.action == "prune":
        print(library.prune(tolerance=args.tolerance))
    elif args.action == "add":
        add(library, args)
    else:
        with working_directory_on_path():
            for path in args.policies:
                print(library.consider(path, args.env, n_eval_episodes=args.episodes, threshold=args.threshold))
    return 0


def add(library: "PolicyLibrary", args: argparse.Namespace) -> None:
    """
    :param library: the library
    :param args: the arguments of the command
    """
    if args.name is not None and len(args.policies) > 1:
        raise ValueError("--name is for one policy: add several one by one.")
    if args.episodes and args.env is None:
        raise ValueError("--episodes needs an environment to act in: pass --env.")
    with working_directory_on_path():
        for path in args.policies:
            print(library.add(path, args.name, task=args.env or "", n_eval_episodes=args.episodes))


def list_policies(library: "PolicyLibrary") -> None:
    """
    :param library: the library
    """
    print(COLUMNS.format("name", "kind", "task", "mean reward", "added", "origin"))
    for entry in library.entries():
        known = entry.returns.get(entry.task)
        worth = "–" if known is None else f"{known.mean:.4g} ± {known.std:.3g}"
        print(COLUMNS.format(entry.name, entry.kind, entry.task, worth, entry.added[:10], entry.origin).rstrip())
