"""``sb3-caps sources``: what a source policy is, whether it fits an environment, and the training of usual ones."""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_caps.commands import working_directory_on_path
from sb3_caps.settings import settings

if TYPE_CHECKING:
    # Imported where it is used: torch takes seconds, and help and list do without it
    import gymnasium as gym

    from sb3_caps.sources import SourcePolicy

LINE = "  {:<13} {}"
FOLDER = Path("sources")
# As the training of the reuse suite calls it
MODEL = "model.zip"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.epilog = (
        "Without arguments, it lists what --train trains. "
        "Loading a saved model or an import string runs code: name only those that you trust, or pass --no-trust, "
        "which reads exports alone (see export_source). "
        "The exit code is 1 if a source does not fit the environment, 2 if one cannot be used at all."
    )
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="source",
        help="the path of a saved model, of an export or of its folder, an import string package.module:function, "
        "or a run <algo>:<env>, which means the latest one in the log folder",
    )
    parser.add_argument("--env", help="an environment to try the sources in")
    parser.add_argument("--episodes", type=int, help="print what each is worth there, in so many episodes alone")
    parser.add_argument("--no-trust", action="store_true", help="refuse whatever may run code when it is loaded")
    parser.add_argument("-f", "--log-folder", default="logs", help="where runs are (default: logs)")
    training = parser.add_argument_group("training")
    training.add_argument(
        "--train", nargs="+", metavar="NAME", help="train these: a family as cartpole, or one source as cartpole-ppo"
    )
    training.add_argument("--to", type=Path, default=FOLDER, help=f"the folder for them (default: {FOLDER})")
    training.add_argument("--steps", type=int, help="environment steps of each, to try it out")
    training.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")


def run(args: argparse.Namespace) -> int:
    """
    :param args: the arguments of the command
    :return: 1 if a source does not fit the environment, or was not trained
    """
    if args.train:
        if args.sources:
            raise ValueError(f"--train trains, and {args.sources[0]} is to look at: ask for one of the two.")
        return train_sources(args.train, args.to, args.steps, args.jobs)
    if not args.sources:
        list_sources(args.to)
        return 0
    if args.episodes is not None:
        if args.env is None:
            raise ValueError("--episodes needs an environment to act in: pass --env.")
        if args.episodes < 1:
            raise ValueError(f"--episodes must be at least 1, not {args.episodes}.")
    return inspect_sources(args.sources, args.env, args.log_folder, not args.no_trust, args.episodes)


def list_sources(folder: Path) -> None:
    """
    Print what can be trained, and what is there.

    :param folder: of trained sources
    """
    known = settings("reuse", "sources")
    print(f"sb3-caps sources --train NAME trains these into {folder}/, a family or one by one:")
    for family in dict.fromkeys(entry["env"] for entry in known.values()):
        if family.startswith("-"):
            continue
        print(family)
        for name in chosen([family], known):
            steps = f"{known[name]['steps']:,} steps"
            print(f"  {name:<16} {steps:>14}  {'trained' if (folder / name / MODEL).is_file() else ''}".rstrip())
    harmful = [name for name, entry in known.items() if entry["env"].startswith("-")]
    print(f"and {len(harmful)} that were taught to do badly, {harmful[0]} to {harmful[-1]}, one by one")


def chosen(names: Sequence[str], known: dict[str, Any]) -> list[str]:
    """
    :param names: of families and of single sources
    :param known: all sources
    :return: the names of single sources
    """
    families = dict.fromkeys(entry["env"] for entry in known.values() if not entry["env"].startswith("-"))
    found: list[str] = []
    for name in names:
        if name in families:
            found += [source for source, entry in known.items() if entry["env"] == name]
        elif name in known:
            found.append(name)
        else:
            raise ValueError(f"There is no source {name!r} to train: pass any of {', '.join([*families, *known])}.")
    return list(dict.fromkeys(found))


def train_sources(names: Sequence[str], folder: Path, steps: int | None = None, jobs: int = 2) -> int:
    """
    Train what is not there yet, with the settings of ``zoo_configs/reuse.yml``.

    :param names: see ``chosen``
    :param folder: where to
    :param steps: environment steps, by default as many as the settings say
    :param jobs: how many at a time
    :return: 1 if one failed
    """
    known = settings("reuse", "sources")
    single = chosen(names, known)

    from sb3_caps.files.lock import one_at_a_time
    from sb3_caps.studies.reuse.training import train
    from sb3_caps.studies.shared.arguments import check_at_least
    from sb3_caps.studies.shared.runs import Run
    from sb3_caps.studies.shared.scheduler import run_missing, this_command

    check_at_least(1, jobs=jobs, steps=steps)
    entries = {name: known[name] | ({} if steps is None else {"steps": steps}) for name in single}
    runs = [Run(folder / name, entry, entry["steps"], MODEL) for name, entry in entries.items()]
    with one_at_a_time(folder, wait=False):
        errors = run_missing(runs, train, jobs, command=this_command())
    for run in runs:
        if run.finished:
            print(run.folder / MODEL)
    return 1 if errors else 0


def inspect_sources(
    given: Sequence[str], env_id: str | None, log_folder: str, trust: bool, episodes: int | None = None
) -> int:
    """
    Print what is known of source policies.

    :param given: paths, import strings and runs
    :param env_id: an environment to try them in
    :param log_folder: where runs are
    :param trust: whether loading may run code
    :param episodes: in how many episodes to find out what each is worth, None for none
    :return: 1 if a source does not fit the environment
    """
    # First what it needs: nothing of that is to come from the working directory
    import sb3_caps.sources

    all_fit = True
    with working_directory_on_path() if trust else nullcontext():
        env = None if env_id is None else _make_env(env_id)
        for each in given:
            source = _source(each, log_folder, trust)
            print(source.name)
            for key, value in describe(source).items():
                print(LINE.format(key, value))
            if env is not None:
                misfit = find_misfit(source, env)
                all_fit = all_fit and misfit is None
                print(LINE.format("environment", f"fits {env_id}" if misfit is None else f"does not fit: {misfit}"))
                if misfit is None and episodes is not None:
                    (worth,) = sb3_caps.sources.evaluate_sources([source], env, episodes)
                    print(LINE.format("mean reward", f"{worth.mean:.4g} ± {worth.std:.3g} in {episodes} episodes"))
    return 0 if all_fit else 1


def describe(source: "SourcePolicy") -> dict[str, Any]:
    """
    :param source: a source policy
    :return: what is known of it
    """
    policy = source.policy
    kind = source.kind if policy is None else f"{source.kind} ({type(policy).__module__})"
    unknown = "unknown"
    return {
        "kind": kind,
        "observations": source.observation_space or unknown,
        "actions": source.action_space or unknown,
    }


def find_misfit(source: "SourcePolicy", env: "gym.Env[Any, Any]") -> str | None:
    """
    Compare the spaces, and let the source act on a first observation.

    :param source: a source policy
    :param env: an environment
    :return: why the source cannot act in it, None if it can
    """
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from sb3_caps.continuous.options import BoxOptionSet
    from sb3_caps.replay.batches import with_batch_axis
    from sb3_caps.reuse.options import OptionSet

    try:
        if not isinstance(env.action_space, (Box, Discrete)):
            raise ValueError(
                f"the environment takes {env.action_space}, and policy reuse needs Discrete or Box actions."
            )
        options_class = BoxOptionSet if isinstance(env.action_space, Box) else OptionSet
        options = options_class([source], env.observation_space, env.action_space)
        observation, _ = env.reset(seed=0)
        options.actions(with_batch_axis(observation), options.initial_states(), np.ones(1, dtype=bool))
    except (ValueError, RuntimeError) as error:
        return str(error)
    return None


def _make_env(env_id: str) -> "gym.Env[Any, Any]":
    import gymnasium as gym

    import sb3_caps.envs  # noqa: F401 registers our environments

    try:
        return gym.make(env_id)
    except gym.error.Error as error:
        raise ValueError(str(error)) from error


def _source(given: str, log_folder: str, trust: bool) -> "SourcePolicy":
    from sb3_caps.sources import IMPORT_STRING, as_source

    if ":" in given and IMPORT_STRING.fullmatch(given) is None:
        # Only runs need rl_zoo3
        from sb3_caps.zoo import find_source, make_source, register

        register()
        return make_source(given, log_folder) if trust else as_source(find_source(given, log_folder), trust=False)
    return as_source(given, trust=trust)
