"""Figures and tables of the Monster Kong study, from what its runs left on disk."""

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from sb3_caps import CAPS
from sb3_caps.envs.monster_kong.planner import plan
from sb3_caps.studies.monster_kong.analysis import area_of_wrong, lost_by_sources
from sb3_caps.studies.monster_kong.evaluation import ExactEvaluation
from sb3_caps.studies.monster_kong.methods import LABELS, TASKS
from sb3_caps.studies.monster_kong.pictures import draw_pictures
from sb3_caps.studies.shared.plots import draw_curves, save
from sb3_caps.studies.shared.records import Record, record_of, with_published, write_records
from sb3_caps.studies.shared.runs import Run, read_rows, write_text
from sb3_caps.studies.shared.tables import columns_of, markdown, steps_table

# What tells runs apart
NAMES = ("observation", "task", "preset", "method", "seed")
# Other ways to execute what was learned
EXECUTIONS: dict[str, dict[str, Any]] = {
    "as learned": {},
    "without a margin": {"margin": 0.0},
    "with a margin of 0.02": {"margin": 0.02},
    "without `averaging`": {"q_net_average": None},
    "call-and-return": {"execution_mode": "call-and-return"},
    "interrupting": {"execution_mode": "interrupting"},
}
# How often each model plays all starts where its options end by chance
N_DRAWS = 3


def draw_study(runs: Sequence[Run], folder: Path, published: Sequence[Path] = ()) -> Iterator[str]:
    """
    Draw everything that finished runs allow.

    :param runs: finished runs
    :param folder: of the study; pictures and tables go to ``figures`` in it
    :param published: files with records of other runs, which are drawn beside them
    :return: lines to print: tables, and the names of the files
    """
    records = with_published([record_of(run, NAMES) for run in runs], published, NAMES)
    write_records(folder, records)
    groups: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
    for record in records:
        group = groups.setdefault((record["observation"], record["task"], record["preset"]), {})
        group.setdefault(record["method"], []).append(record)
    for (observation, task, preset), methods in groups.items():
        name = f"{task}_{observation}_{preset}"
        curves = {method: columns_of(found) for method, found in methods.items()}
        title = f"Target task {task}, preset {preset}"
        figure = draw_curves(curves, LABELS, plan(*TASKS[task]).optimum(), title)
        yield str(save(figure, folder / "figures" / f"figure10_{name}.png"))
        table = steps_table(curves, LABELS)
        write_text(folder / "figures" / f"table_{name}.md", f"{table}\n")
        yield from ("", f"Task {task}, {observation}, preset {preset}:", table, "")
        for method in ("caps", "caps-beta"):
            asked = {"observation": observation, "task": task, "preset": preset, "method": method}
            own = [run for run in runs if asked.items() <= run.config.items()]
            if own and observation == "features":
                yield from (f"{LABELS[method]}:", executions_table(own), "", terminations_table(own), "")
            if own and method == "caps":
                yield from draw_pictures(_best(own), folder / "figures", name)


def executions_table(runs: Sequence[Run]) -> str:
    """
    What execution is worth, apart from learning: finished models, executed as they are and otherwise.

    :param runs: of CAPS from features, all of one task
    :return: a table: the mean share of the optimum, and the lowest
    """
    evaluate = ExactEvaluation(*TASKS[runs[0].config["task"]])
    shares: dict[str, list[float]] = {}
    for run in runs:
        model = CAPS.load(run.folder / "model.zip", device="cpu")
        for label, change in EXECUTIONS.items():
            if change and all(getattr(model.policy, name) == value for name, value in change.items()):
                continue
            found = copy(model)
            found.policy = copy(model.policy)
            for name, value in change.items():
                setattr(found.policy, name, value)
            shares.setdefault(label, []).append(float(evaluate(found).returns.mean() / evaluate.optimum))
        drawn = [evaluate.with_drawn_terminations(model, seed).returns.mean() for seed in range(N_DRAWS)]
        shares.setdefault("call-and-return, ends drawn", []).append(float(np.mean(drawn) / evaluate.optimum))
    rows = [[label, f"{np.mean(each):.1%}", f"{min(each):.1%}"] for label, each in shares.items()]
    return markdown(["execution of the finished models", "mean share", "lowest"], rows)


def terminations_table(runs: Sequence[Run]) -> str:
    """
    Whether β is right: as a classifier of "the action of this source is not the best one here", against the planner.

    :param runs: of CAPS from features, all of one task
    :return: a table: the area under the ROC curve of β, and of what a source costs by the option values
    """
    evaluate = ExactEvaluation(*TASKS[runs[0].config["task"]])
    areas: dict[str, list[float]] = {"β": [], "option values": []}
    for run in runs:
        model = CAPS.load(run.folder / "model.zip", device="cpu")
        values, beta = model.policy.values_and_terminations(evaluate.observations)
        actions = evaluate.actions_of(model)
        sources = actions[:, : model.options.n_sources]
        lost = lost_by_sources(values, actions, sources)
        for found, scores in zip(areas.values(), (beta[:, : sources.shape[1]], lost), strict=True):
            found.append(area_of_wrong(scores, sources, evaluate.plan))
    rows = [[label, f"{np.mean(each):.2f}", f"{min(each):.2f}"] for label, each in areas.items()]
    return markdown(["area under the ROC curve of", "mean", "lowest"], rows)


def _best(runs: Sequence[Run]) -> Run:
    """The run to show: the one with the best end."""
    return max(runs, key=lambda run: read_rows(run.curve)[-1]["share"])
