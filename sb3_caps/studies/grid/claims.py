"""Every sentence of the paper about Figures 2 to 7 against what was measured here."""

from typing import NamedTuple

import numpy as np

from sb3_caps.studies.grid.batches import RECOMMENDED, SOURCE_TASKS, optimum, task
from sb3_caps.studies.grid.metrics import Study, optimal_actions, source_agreement
from sb3_caps.studies.grid.verdicts import at_least, bars, better, difference
from sb3_caps.studies.shared.statistics import Interval
from sb3_caps.tabular.caps import sigmoid

N_SOURCES = len(SOURCE_TASKS)
NEAR = 3


class Claim(NamedTuple):
    """
    A row of the table of claims.

    :param figure: the figure that the sentence is about
    :param claim: the sentence, shortened
    :param needed: what it needs to hold
    :param measured: what was measured
    :param verdict: held, failed or undecided
    """

    figure: str
    claim: str
    needed: str
    measured: str
    verdict: str


def claims(study: Study, margin: float) -> list[Claim]:
    """
    Compare the results with the paper's claims.

    :param study: the finished results
    :param margin: a smaller difference of areas does not matter
    :return: all rows
    """
    return [
        *_curves_on_g(study, margin),
        *_options_on_g(study),
        *_terminations_on_g(study),
        *_curves_on_g_prime(study, margin),
        *_changed_map(study, margin),
        *(
            _level(
                "2, 5, 7",
                f"CAPS converges to an optimal policy ({on}, in these episodes)",
                "optimal policy",
                study.final("CAPS", on),
                "greedy value",
            )
            for on in ("g", "g'", "changed")
        ),
    ]


def _compare(study: Study, margin: float, figure: str, claim: str, first: str, second: str, on: str) -> Claim:
    """A claim that one method is better than another, by the area under the curve."""
    areas = study.area(first, on), study.area(second, on)
    found = difference(*areas)
    measured = f"area {areas[0].mean():.3f} − {areas[1].mean():.3f} = {found}"
    return Claim(figure, claim, "> 0", measured, better(found, margin))


def _level(figure: str, claim: str, bar: str, samples: np.ndarray, what: str) -> Claim:
    """A claim that something is as high as it needs to be, with a number for each run."""
    found = Interval.of(samples)
    return Claim(figure, claim, f"at least {bars()[bar]:g}", f"{what} {found}", at_least(found, bars()[bar]))


def _curves_on_g(study: Study, margin: float) -> list[Claim]:
    def compare(claim: str, first: str, second: str) -> Claim:
        return _compare(study, margin, "2", claim, first, second, "g")

    learned, fixed = study.final("CAPS", "g"), study.final("CAPS, β = 0.5", "g")
    found = difference(learned, fixed)
    return [
        compare("CAPS accelerates learning, against the paper's Q-learning", "CAPS", "Q-learning"),
        compare("… when both explore with K = 25", "CAPS", "Q-learning, ε of CAPS"),
        compare("… when both explore with K = 800", "ε of Q-learning (K = 800)", "Q-learning"),
        compare("CAPS outperforms OPS-TL", "CAPS", "OPS-TL"),
        compare("CAPS outperforms PRQL", "CAPS", "PRQL"),
        compare("negative transfer: PRQL is worse than Q-learning", "Q-learning", "PRQL"),
        Claim(
            "2",
            "with β fixed at 0.5 CAPS ends in a worse policy",
            "> 0",
            f"greedy value {learned.mean():.3f} − {fixed.mean():.3f} = {found}",
            better(found, margin),
        ),
        compare("Option-Critic is worse than Q-learning", "Q-learning", "Option-Critic"),
    ]


def _options_on_g(study: Study) -> list[Claim]:
    on = task("g").map
    goal = on.goals["g"]
    cells = on.start_cells(goal)
    rows, columns = np.divmod(cells, on.width)
    near = np.abs(rows - goal // on.width) + np.abs(columns - goal % on.width) <= NEAR
    # Of those, the cells in which no source takes an optimal action.
    useless = ~source_agreement("g")[:, cells].any(axis=0)
    options = study.array("CAPS", "g", "greedy_options")[:, cells]
    primitive = options >= N_SOURCES
    room = (rows >= 17) & (columns <= 4)
    return [
        _level(
            "3",
            "CAPS chooses the optimal policy for each context",
            "optimal action",
            study.consistency("CAPS", "g")[1],
            "share of optimal actions, weighted by visits,",
        ),
        _level(
            "3",
            f"around g (within {NEAR} moves, no source right) CAPS takes primitive options",
            "primitive around g",
            primitive[:, near & useless].mean(axis=1),
            "share",
        ),
        _level(
            "3",
            "elsewhere it takes sources",
            "sources elsewhere",
            (~primitive[:, ~near]).mean(axis=1),
            "share",
        ),
        _level(
            "3",
            "π_G3 is the one that leads out of the lower left room",
            "G3 in the lower left room",
            (options[:, room] == list(SOURCE_TASKS).index("G3")).mean(axis=1),
            "share of its states",
        ),
    ]


def _terminations_on_g(study: Study) -> list[Claim]:
    beta = sigmoid(study.array("CAPS", "g", "theta"))[..., :N_SOURCES]
    cells = task("g").map.start_cells(task("g").map.goals["g"])
    light = (beta[:, cells] <= 0.5)[:, source_agreement("g").T[cells]].mean(axis=1)
    rows = [
        _level("4", "large blocks of light colour: sources are reused over many steps", "light blocks", light, "share")
    ]
    for variant, words in (("CAPS", ""), (RECOMMENDED, ", with α_β = 20")):
        wrong, right = terminations(study, variant)
        what = f"mean β (where right {right.mean():.3f}), where wrong,"
        rows.append(
            _level(
                "4", f"where a source is wrong it ends with a high probability{words}", "high termination", wrong, what
            )
        )
    return rows


def terminations(study: Study, variant: str) -> tuple[np.ndarray, np.ndarray]:
    """
    Compute β where sources are wrong, and where they are right.

    :param study: the finished results
    :param variant: CAPS or a variant of it
    :return: for each run the mean β on g of sources whose action is wrong, and of those that are right, over the states
        in which it has been updated
    """
    cells = task("g").map.start_cells(task("g").map.goals["g"])
    theta = study.array(variant, "g", "theta")[:, cells, :N_SOURCES]
    optimal = optimal_actions("g")
    right = np.stack([optimal[np.arange(len(optimal)), optimum(name).policy] for name in SOURCE_TASKS], axis=1)[cells]
    return _mean_where(theta, ~right), _mean_where(theta, right)


def _mean_where(theta: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The mean β over states and options; before the first update it is the start, one half."""
    where = where & (theta != 0.0)
    counts = where.sum(axis=(1, 2))
    return np.where(counts, np.where(where, sigmoid(theta), 0.0).sum(axis=(1, 2)) / counts.clip(1), 0.5)


def _curves_on_g_prime(study: Study, margin: float) -> list[Claim]:
    counts = study.array("OPS-TL", "g'", "counts")
    on = task("g'").map
    options = study.array("CAPS", "g'", "greedy_options")[:, on.start_cells(on.goals["g'"])]
    found = difference(study.area("Option-Critic", "g'"), study.area("Option-Critic", "g"))
    return [
        _level("5", "OPS-TL selects π_G1", "selects G1", counts[:, 0] / counts.sum(axis=1), "share of the episodes"),
        _level("5", "CAPS selects π_G1", "selects G1", (options == 0).mean(axis=1), "share of the states"),
        _compare(study, margin, "5", "CAPS performs slightly better than OPS-TL", "CAPS", "OPS-TL", "g'"),
        Claim("5", "Option-Critic performs better on g' than on g", "> 0", f"area {found}", better(found, margin)),
    ]


def _changed_map(study: Study, margin: float) -> list[Claim]:
    others = ("Q-learning", "Q-learning, ε of CAPS", "PRQL", "OPS-TL", "Option-Critic")
    return [
        *(_compare(study, margin, "7", f"CAPS outperforms {other}", "CAPS", other, "changed") for other in others),
        _level(
            "7",
            "CAPS identifies the useful parts of the sources by context",
            "optimal action",
            study.consistency("CAPS", "changed")[1],
            "share of optimal actions, weighted by visits,",
        ),
    ]
