"""Tables and figures of tuning, random targets and long runs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sb3_caps.envs.grid import plan
from sb3_caps.envs.grid.planner import evaluator
from sb3_caps.studies.grid.batches import SOURCE_TASKS, TASKS, Trial, optimum, task
from sb3_caps.studies.grid.designs import (
    ALL,
    LEARNERS,
    LONG_FAST_RUN,
    LONG_RUN,
    MAPS,
    N_TARGETS,
    PAPER_RUN,
    SETTINGS,
    TARGET_REWARDS,
    THEOREMS,
    TUNING_SEEDS,
    at,
    choices,
    chosen,
    targets,
)
from sb3_caps.studies.grid.metrics import Study
from sb3_caps.studies.grid.results import evaluate, snapshot_episodes
from sb3_caps.studies.grid.verdicts import Difference, better, difference
from sb3_caps.studies.shared.plots import INK, METHOD_COLOURS, PAGE_WIDTH, TEXT_SIZE, new_figure, save, tidy
from sb3_caps.studies.shared.statistics import Interval, bootstrap_interval
from sb3_caps.studies.shared.tables import markdown
from sb3_caps.tabular import CAPSConfig, Greedy
from sb3_caps.tabular.caps import sigmoid

# Tuning


def tuning(study: Study, folder: Path, margin: float) -> tuple[list[Path], str]:
    """
    Report the settings that were chosen and what they are worth.

    :param study: the finished results
    :param folder: not needed: there is no figure
    :param margin: a smaller difference of areas does not matter
    :return: no path, and the tables
    """
    seeds = min(study.results.n_runs, len(TUNING_SEEDS))
    names = list(choices())
    rows, compared = [], []
    for learner in LEARNERS:
        best = chosen(learner, study.results.load(f"tuning_{learner}"))
        for name, number in best.items():
            setting = ", ".join(f"{key} {value:g}" for key, value in choices()[name].settings[number].items())
            on_sources = [study.area(f"{name} {number}", on).mean() for on in SOURCE_TASKS]
            areas = [str(Interval.of(study.area(f"{name}, tuned", on))) for on in TASKS]
            rows.append([name, setting, f"{np.mean(on_sources):.3f}", *areas])
    for name in names:
        found = [difference(study.area("CAPS, tuned", on), study.area(f"{name}, tuned", on)) for on in TASKS]
        if name != "CAPS":
            compared.append([name, *(f"{one}: {better(one, margin)}" for one in found)])
    parts = [
        f"# Tuned on the source tasks: {study.results.n_runs} runs of {study.results.episodes} episodes",
        f"The best of {SETTINGS} settings of each row, by the mean area over the four source tasks, each learned from "
        f"the other three, {seeds} seeds of "
        f"{ALL['tuning_caps'].episodes(study.results.episodes)} episodes. Area under the "
        "curve with 95% intervals.",
        markdown(["method", "chosen", "source tasks", *TASKS], rows),
        "## CAPS minus the others",
        markdown(["against", *TASKS], compared),
    ]
    return [], "\n\n".join(parts) + "\n"


# Random targets


def compared(reward: float) -> tuple[tuple[str, str], ...]:
    """
    List the comparisons on random targets.

    :param reward: R
    :return: pairs of variants with that reward, of which the first is better if the paper is right
    """
    caps, caps_800 = at("CAPS", reward, 25), at("CAPS", reward, 800)
    q_25, q_800, prql = at("Q-learning", None, 25), at("Q-learning", None, 800), at("PRQL", reward)
    return (
        (caps, q_25),
        (caps, q_800),
        (caps_800, q_800),
        (caps, prql),
        (caps, at("OPS-TL", reward, 25)),
        (caps, at("OPS-TL, within the episode", reward, 25)),
        (q_800, prql),
    )


def random_targets(study: Study, folder: Path, margin: float) -> tuple[list[Path], str]:
    """
    Report the results on random targets.

    :param study: the finished results
    :param folder: where to put the figure
    :param margin: a smaller difference of areas does not matter
    :return: the figure's path, and the table
    """
    figure, axes = new_figure(PAGE_WIDTH, 7.6, columns=len(MAPS), rows=len(TARGET_REWARDS))
    rows = []
    for column, map_name in enumerate(MAPS):
        bounds = np.array([highest(name) for name in targets(map_name)])
        for ax, reward in zip(axes[:, column], TARGET_REWARDS, strict=True):
            pairs = compared(reward)
            if ax is not axes[0, 0]:
                ax.sharex(axes[0, 0])
            for height, (first, second) in enumerate(pairs):
                found = (_areas(study, first, map_name) - _areas(study, second, map_name)) / bounds
                low, high = bootstrap_interval(found)
                mean = Difference(float(found.mean()), low, high)
                ahead = f"{(found > 0).sum()} of {N_TARGETS}"
                rows.append([map_name, f"{first} − {second}", str(mean), ahead, better(mean, margin)])
                colour = METHOD_COLOURS[second.split(",")[0]]
                ax.plot(found, np.full(len(found), height), "|", color=colour, alpha=0.4, markersize=9)
                ax.plot([low, high], [height, height], color=colour, linewidth=3)
                ax.plot(mean.mean, height, "o", color=colour, markeredgecolor="white")
            ax.axvline(0, color=INK, linewidth=0.8)
            names = [f"{first} − {second}".replace(f", R = {reward:g}", "") for first, second in pairs]
            ax.set_yticks(range(len(pairs)), [name.replace(" − ", "\n− ") for name in names], fontsize=TEXT_SIZE)
            ax.set(ylim=(len(pairs) - 0.5, -0.5), xlabel="difference of areas, share of optimum")
            ax.set_title(f"{map_name}, R = {reward:g}", fontsize=TEXT_SIZE, color=INK)
            ax.label_outer()
            tidy(ax)
    figure.suptitle(f"{N_TARGETS} random targets: each, their mean and its 95% interval", color=INK)
    text = [
        f"# {N_TARGETS} random targets on each map: {study.results.n_runs} runs of {study.results.episodes} episodes",
        "Difference of areas as a share of the optimum of a coarse model, in which a cell is one state: mean over "
        "targets with the 95% interval of a bootstrap over targets.",
        markdown(["map", "difference", "mean over targets", "above 0", "first is better"], rows),
    ]
    return [save(figure, folder / "targets.png")], "\n\n".join(text) + "\n"


def _areas(study: Study, variant: str, map_name: str) -> np.ndarray:
    """The mean return over runs and episodes, for each target."""
    return np.array([study.array(variant, name, "returns").mean() for name in targets(map_name)])


def highest(name: str) -> float:
    """
    Compute the optimum of a task roughly.

    :param name: a task
    :return: the optimum of a coarse model, in which a cell is one state; the planner's own takes seconds to find
    """
    on = evaluator(*task(name), resolution=1)
    return float(on.start @ on.optimal_values())


# Long runs


def theorems(study: Study, folder: Path, margin: float) -> tuple[list[Path], str]:
    """
    Report the long runs.

    :param study: the finished results
    :param folder: where to put the figure
    :param margin: not needed: there are no comparisons
    :return: the figure's path, and the table
    """
    figure, axes = new_figure(PAGE_WIDTH, 5.0, columns=2)
    rows = []
    colours = dict(zip((PAPER_RUN, LONG_RUN, LONG_FAST_RUN), ("#d62839", "#ee9aa3", "#7a1020"), strict=True))
    for batch, (variant, colour) in ((b, item) for b in THEOREMS for item in colours.items()):
        single = Study(study.results, [batch])
        noise = ALL[batch].noise
        label = variant if noise else f"{variant}, no noise"
        episodes = snapshot_episodes(batch, study.results.episodes)
        beta, predicted = terminations(single, variant)
        values = np.array([share for share in _greedy_values(single, variant, noise)])
        for ax, curves in ((axes[0, 0], 1.0 - beta), (axes[0, 1], values)):
            ax.plot(episodes, curves, color=colour, alpha=0.25, linewidth=0.7)
            style = "-" if noise else "--"
            ax.plot(episodes, curves.mean(axis=1), style, color=colour, marker="o", markersize=4, label=label)
        if noise:
            axes[0, 0].plot(episodes, 1.0 - predicted.mean(axis=1), ":", color=colour, label=f"{label}: Equation 2")
        for index, episode in enumerate(episodes):
            numbers = (beta[index], predicted[index], values[index])
            rows.append([label, f"{episode:,}", *(str(Interval.of(samples)) for samples in numbers)])
    axes[0, 0].set(xscale="log", yscale="log", xlabel="episode", ylabel="1 − β of non-optimal options, mean")
    axes[0, 1].set(xscale="log", xlabel="episode", ylabel="greedy value, share of the optimum", ylim=(0, 1.05))
    for ax in axes[0]:
        tidy(ax)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=TEXT_SIZE)
    header = ["run", "episodes", "mean β of non-optimal options", "Equation 2 predicts", "greedy value"]
    text = [
        f"# Long runs on g: {study.results.n_runs} runs of {episodes[-1]:,} episodes",
        "Non-optimal options are those whose value in the end is more than 1% below the best, where they have arrived. "
        "The prediction takes their number of arrivals so far and their advantage in the end.",
        markdown(header, rows),
    ]
    return [save(figure, folder / "theorems.png")], "\n\n".join(text) + "\n"


def terminations(study: Study, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """
    Compute the β of non-optimal options and its prediction.

    :param study: with the results of one batch of long runs
    :param variant: one of its variants
    :return: the mean β of non-optimal options, and what Equation 2 predicts, of shape (snapshots, runs)
    """
    cells = task("g").map.start_cells(task("g").map.goals["g"])
    theta, values, arrivals = (
        study.array(variant, "g", f"snapshot_{name}").astype(float)[:, :, cells]
        for name in ("theta", "values", "arrivals")
    )
    best = values[-1].max(axis=2, keepdims=True)
    advantage = best - values[-1]
    worse = (advantage > 0.01 * best) & (arrivals[-1] > 0)
    expected = predicted_theta(CAPSConfig().termination_learning_rate * advantage * arrivals)
    means = [
        np.where(worse, sigmoid(table), 0.0).sum(axis=(2, 3)) / worse.sum(axis=(1, 2)).clip(1)
        for table in (theta, expected)
    ]
    return means[0], means[1]


def predicted_theta(pushes: np.ndarray) -> np.ndarray:
    """
    θ moves by α_β β(1 − β) |A| in a visit. With an advantage that stays, 2θ + 2 sinh θ = α_β |A| N after N visits.

    :param pushes: α_β |A| N
    :return: θ
    """
    theta = np.arcsinh(pushes / 2)
    for _ in range(30):
        theta -= (2 * theta + 2 * np.sinh(theta) - pushes) / (2 + 2 * np.cosh(theta))
    return theta


def _greedy_values(study: Study, variant: str, noise: float) -> Iterator[np.ndarray]:
    """The value of the greedy options at each snapshot, executed with their terminations, as a share of the optimum."""
    values, theta = (study.array(variant, "g", f"snapshot_{name}") for name in ("values", "theta"))
    best = optimum("g").value if noise else plan(*task("g"), noise=noise).value
    sources = np.stack([optimum(name).policy for name in SOURCE_TASKS], axis=1)
    primitives = np.broadcast_to(np.arange(4), (len(sources), 4))
    actions = np.concatenate([sources, primitives], axis=1)
    trials = [Trial(variant, "g", run, None) for run in range(values.shape[1])]
    for of_options, of_terminations in zip(values, theta, strict=True):
        options = of_options.argmax(axis=2)
        greedy = Greedy(options, np.broadcast_to(actions, of_options.shape), sigmoid(of_terminations))
        yield evaluate(greedy, trials, noise) / best
