"""rl_zoo3's plots of the runs that are in a log folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sb3_caps.extras import require
from sb3_caps.zoo.commands import run_zoo
from sb3_caps.zoo.patching import replaced

# Options of rl_zoo3's plots that name environments
ENVIRONMENT_OPTIONS = ("-e", "--env", "--keep-envs", "--skip-envs", "-skip")
HELP = """\
  --save-figures FOLDER  write every figure to a PNG file in this folder, in place of a window
"""
TWO_RUNS = "rl_zoo3's plot_from_file needs at least two runs of every algorithm on every environment: train more."


def plot_train(argv: Sequence[str]) -> int:
    """
    Draw training episodes with rl_zoo3.

    :param argv: the arguments of its command; ``--algo caps --exp-folder logs`` by default
    :return: the exit code
    """
    return _plot("plot_train", ["--algo", "caps", "--exp-folder", "logs", *argv])


def all_plots(argv: Sequence[str]) -> int:
    """
    Draw and tabulate evaluations with rl_zoo3.

    :param argv: the arguments of its command; ``--algos caps --exp-folders logs`` by default
    :return: the exit code
    """
    _need(argv, "all_plots", "-e", "--env")
    return _plot("all_plots", ["--algos", "caps", "--exp-folders", "logs", *argv])


def plot_from_file(argv: Sequence[str]) -> int:
    """
    Draw what ``all_plots -o`` wrote with rl_zoo3. The file is a pickle: loading it runs whatever is in it.

    :param argv: the arguments of its command
    :return: the exit code
    """
    _need(argv, "plot_from_file", "-i", "--input")
    try:
        return _plot("plot_from_file", argv)
    except ValueError as error:
        if "empty sequence" not in str(error):
            raise
        raise ValueError(TWO_RUNS) from error


def _need(argv: Sequence[str], name: str, *options: str) -> None:
    given = {argument.partition("=")[0] for argument in argv}
    if not given & {*options, "-h", "--help"}:
        raise ValueError(f"rl_zoo3's {name} needs {' or '.join(options)}: see sb3-caps {name} --help.")


def _check_runs(argv: Sequence[str]) -> None:
    """Refuse to draw environments that have no run: rl_zoo3 draws empty axes."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", "--algo", "--algos", dest="algos", nargs="+")
    parser.add_argument("-f", "--exp-folder", "--exp-folders", dest="folders", nargs="+")
    parser.add_argument("-e", "--env", nargs="+", default=[])
    args, _ = parser.parse_known_args(argv)
    runs = {run.name for folder in args.folders for algo in args.algos for run in Path(folder, algo.lower()).glob("*")}
    for env in args.env:
        if not any(env in run for run in runs):
            algos, folders = ", ".join(args.algos), ", ".join(args.folders)
            raise FileNotFoundError(f"There is no run of {algos} on {env} in {folders}.")


def _plot(name: str, argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--save-figures", type=Path)
    args, others = parser.parse_known_args(argv)
    plots = _import_plots()
    pyplot = require("matplotlib.pyplot", "plots")
    others = with_folder_names(others)
    if name != "plot_from_file":
        _check_runs(others)
    if args.save_figures is None:
        return run_zoo(getattr(plots, name), name, others, HELP)
    pyplot.switch_backend("Agg")
    with replaced(pyplot, show=lambda: None):
        code = run_zoo(getattr(plots, name), name, others, HELP)
    save_figures(pyplot, args.save_figures)
    return code


def _import_plots() -> Any:
    try:
        return require("rl_zoo3.plots", "plots")
    except (TypeError, AttributeError) as error:
        # What rliable 1.2 needs cannot be imported beside pandas 3, and rl_zoo3 expects nothing but an ImportError
        raise ImportError(
            "rl_zoo3's plots do not work with the pandas and rliable that are here "
            f"({error}): pip install 'sb3-caps[plots]' brings a pandas below 3."
        ) from error


def with_folder_names(argv: Sequence[str]) -> list[str]:
    """
    :param argv: arguments of a plot
    :return: the same, with environments named as their folders are: without a slash
    """
    result, naming = [], False
    for argument in argv:
        option, equals, value = argument.partition("=")
        if argument.startswith("-"):
            naming = option in ENVIRONMENT_OPTIONS
            result.append(option + equals + (value.replace("/", "-") if naming else value))
        else:
            result.append(argument.replace("/", "-") if naming else argument)
    return result


def save_figures(pyplot: Any, folder: Path) -> None:
    """
    Write the figures that are open, and close them.

    :param pyplot: Matplotlib's
    :param folder: where to
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        file = folder / f"{figure.get_label() or f'figure {number}'}.png".replace("/", "-").replace(" ", "_")
        figure.savefig(file, dpi=150)
        print(f"Drawn to {file}")
        pyplot.close(figure)
