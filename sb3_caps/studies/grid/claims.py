"""Every sentence of the paper about Figures 2 to 7, and Theorem 2, against what was measured here."""

from typing import NamedTuple

import numpy as np

from sb3_caps.studies.grid.batches import BATCHES, RECOMMENDED, SOURCE_TASKS, optimum, task
from sb3_caps.studies.grid.metrics import Study, optimal_actions, source_agreement
from sb3_caps.studies.shared.statistics import Interval

N_SOURCES = len(SOURCE_TASKS)
NEAR = 3


class Claim(NamedTuple):
    """
    A row of the table of claims.

    :param figure: the figure that the sentence is about
    :param claim: the sentence, shortened
    :param holds: "yes", "no" or "partly"
    :param evidence: the numbers that show it
    """

    figure: str
    claim: str
    holds: str
    evidence: str


def claims(study: Study) -> list[Claim]:
    """
    :param study: the finished results
    :return: all rows
    """
    return [
        *_curves_on_g(study),
        *_options_on_g(study),
        *_terminations_on_g(study),
        *_curves_on_g_prime(study),
        *_changed_map(study),
        *_theorems(study),
    ]


def _compare(study: Study, figure: str, claim: str, better: str, worse: str, on: str) -> Claim:
    """A claim that one method is better than another: by the area under the curve, paired by seeds."""
    difference = Interval.of(study.area(better, on) - study.area(worse, on))
    holds = "yes" if difference.mean > difference.half_width else "no"
    if abs(difference.mean) <= difference.half_width:
        holds = "no difference"
    areas = f"{study.area(better, on).mean():.3f} against {study.area(worse, on).mean():.3f}"
    return Claim(figure, claim, holds, f"area under the curve {areas}; difference {difference}")


def _curves_on_g(study: Study) -> list[Claim]:
    fixed, learned = study.final("CAPS, β = 0.5", "g"), study.final("CAPS", "g")
    difference = Interval.of(learned - fixed)
    return [
        _compare(study, "2", "CAPS significantly accelerates learning", "CAPS", "Q-learning", "g"),
        _compare(study, "2", "… also when both explore with K = 25", "CAPS", "Q-learning, ε of CAPS", "g"),
        _compare(study, "2", "… also when both explore with K = 800", "ε of Q-learning (K = 800)", "Q-learning", "g"),
        _compare(study, "2", "CAPS dramatically outperforms OPS-TL", "CAPS", "OPS-TL", "g"),
        _compare(study, "2", "CAPS dramatically outperforms PRQL", "CAPS", "PRQL", "g"),
        _compare(study, "2", "PRQL results in negative transfer compared to Q-learning", "Q-learning", "PRQL", "g"),
        _compare(study, "2", "… compared to Q-learning with the ε of CAPS", "Q-learning, ε of CAPS", "PRQL", "g"),
        Claim(
            "2",
            "with β fixed at 0.5 CAPS converges to a suboptimal policy, so β has to be learned",
            "yes" if difference.mean > difference.half_width and fixed.mean() < 0.95 else "no",
            f"final greedy value {Interval.of(fixed)} of the optimum against {Interval.of(learned)} with a learned β",
        ),
        _compare(
            study, "2", "Option-Critic performs dramatically worse than Q-learning", "Q-learning", "Option-Critic", "g"
        ),
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
    states, visited = study.consistency("CAPS", "g")
    room = (rows >= 17) & (columns <= 4)
    shares = [float((options[:, room] == index).mean()) for index in range(N_SOURCES)]
    named = ", ".join(f"{name} {share:.0%}" for name, share in zip(SOURCE_TASKS, shares, strict=True))
    best = int(np.argmax(shares))
    return [
        Claim(
            "3",
            "CAPS learns to choose the optimal policy to reuse for different contexts (consistency)",
            "yes" if visited.mean() > 0.9 else "partly",
            f"the greedy option's action is optimal in {states.mean():.1%} of the states, {visited.mean():.1%} when "
            "they are weighted by the visits of an optimal policy",
        ),
        Claim(
            "3",
            "around g no source is useful, so CAPS chooses primitive options",
            "yes" if primitive[:, near & useless].mean() > 0.9 else "partly",
            f"primitive in {primitive[:, near & useless].mean():.0%} of the states within {NEAR} moves of g where no "
            f"source is right, in {primitive[:, near].mean():.0%} of all states that near, "
            f"in {primitive[:, ~near].mean():.0%} of the others",
        ),
        Claim(
            "3",
            "for other states CAPS chooses different source options",
            "yes" if (~primitive[:, ~near]).mean() > 0.5 else "no",
            f"sources in {(~primitive[:, ~near]).mean():.0%} of them; each of the four in at least "
            f"{min((options[:, ~near] == index).mean() for index in range(N_SOURCES)):.0%}",
        ),
        Claim(
            "3",
            "source π_G3 navigates out of the room in the lower left corner",
            "yes" if list(SOURCE_TASKS)[best] == "G3" else "no",
            f"here G3 lies in that room, so that π_G3 stays in it; greedy options there: {named}",
        ),
    ]


def _terminations_on_g(study: Study) -> list[Claim]:
    _, wrong, right = non_optimal_terminations(study, "g", sources_only=True)
    _, fast_wrong, fast_right = non_optimal_terminations(study, "g", sources_only=True, variant=RECOMMENDED)
    beta = termination(study.array("CAPS", "g", "theta"))[..., :N_SOURCES]
    cells = task("g").map.start_cells(task("g").map.goals["g"])
    agrees = source_agreement("g").T[cells]
    light = (beta[:, cells] <= 0.5)[:, agrees].mean()
    return [
        Claim(
            "4",
            "large blocks of light colour: policies are reused over many steps",
            "partly",
            f"β is at its start of 0.5 in {light:.0%} of the pairs of a state and a source that is right there, so "
            "that an option lasts two steps on average; it cannot fall, since no advantage in Equation 2 is positive",
        ),
        Claim(
            "4",
            "where a source is not consistent with the optimal policy it ends with a high probability",
            _degree(wrong[-1].mean()),
            f"mean β {wrong[-1].mean():.3f} where a source is wrong, {right[-1].mean():.3f} where it is right, 0.5 at "
            "the start: the direction is the paper's, the size is not",
        ),
        Claim(
            "4",
            "… the same with α_β = 20 instead of 0.2",
            _degree(fast_wrong[-1].mean()),
            f"mean β {fast_wrong[-1].mean():.3f} where a source is wrong, {fast_right[-1].mean():.3f} where right",
        ),
    ]


def _degree(beta: float) -> str:
    """Is this a high probability of ending?"""
    if beta > 0.9:
        return "yes"
    return "partly" if beta > 0.6 else "no"


def _curves_on_g_prime(study: Study) -> list[Claim]:
    counts = study.array("OPS-TL", "g'", "counts")
    picked = Interval.of(counts[:, 0] / counts.sum(axis=1))
    on = task("g'").map
    cells = on.start_cells(on.goals["g'"])
    options = study.array("CAPS", "g'", "greedy_options")[:, cells]
    shares = [(options == index).mean() for index in range(N_SOURCES)]
    better = Interval.of(study.area("Option-Critic", "g'") - study.area("Option-Critic", "g"))
    return [
        Claim(
            "5",
            "OPS-TL selects π_G1",
            "yes" if picked.mean > 0.5 else "no",
            f"in {picked.mean:.0%} of the episodes",
        ),
        Claim(
            "5",
            "CAPS selects π_G1",
            "yes" if int(np.argmax(shares)) == 0 and shares[0] > 0.5 else "partly",
            "greedy option by share of states: "
            + ", ".join(f"{name} {share:.0%}" for name, share in zip(SOURCE_TASKS, shares, strict=True)),
        ),
        _compare(study, "5", "CAPS performs slightly better than OPS-TL", "CAPS", "OPS-TL", "g'"),
        _compare(study, "5", "multi-policy reuse does not cost anything: CAPS against PRQL", "CAPS", "PRQL", "g'"),
        Claim(
            "5",
            "Option-Critic performs better on g' than on g",
            "yes" if better.mean > better.half_width else "no",
            f"area under the curve higher by {better} of the optimum",
        ),
    ]


def _changed_map(study: Study) -> list[Claim]:
    others = ("Q-learning", "Q-learning, ε of CAPS", "PRQL", "OPS-TL", "Option-Critic")
    rows = [_compare(study, "7", f"CAPS outperforms {other}", "CAPS", other, "changed") for other in others]
    states, visited = study.consistency("CAPS", "changed")
    useful = source_agreement("changed")[:, task("changed").map.free_cells].any(axis=0).mean()
    return [
        *rows,
        Claim(
            "7",
            "CAPS identifies the useful parts of the sources by context",
            "yes" if visited.mean() > 0.9 else "partly",
            f"some source is right in {useful:.0%} of the states; the greedy option's action is optimal in "
            f"{states.mean():.1%} of them, {visited.mean():.1%} weighted by visits",
        ),
    ]


def _theorems(study: Study) -> list[Claim]:
    rows = []
    for name in ("g", "g'", "changed"):
        flat, executed = study.flat("CAPS", name), study.final("CAPS", name)
        rows.append(
            Claim(
                "Theorems 1, 2",
                f"CAPS converges to an optimal policy ({name}, within the episodes of this study)",
                "yes" if executed.mean() > 0.95 else "partly",
                f"greedy options with their terminations {Interval.of(executed)} of the optimum, "
                f"ending them after every step {Interval.of(flat)}",
            )
        )
    for variant in ("CAPS", RECOMMENDED):
        episodes, wrong, right = non_optimal_terminations(study, "g", variant=variant)
        steps = zip(episodes, wrong.mean(axis=1), strict=True)
        means = ", ".join(f"{mean:.3f} (episode {episode})" for episode, mean in steps)
        rows.append(
            Claim(
                "Theorem 2",
                f"β of non-optimal options goes to 1 ({variant}, g)",
                _degree(wrong[-1].mean()),
                f"mean β of options whose action is not optimal, where it has been updated: {means}; of the others "
                f"{right[-1].mean():.3f} in the end",
            )
        )
    return rows


def termination(theta: np.ndarray) -> np.ndarray:
    """
    :param theta: θ
    :return: β
    """
    return 1.0 / (1.0 + np.exp(-theta))


def non_optimal_terminations(
    study: Study, name: str, sources_only: bool = False, variant: str = "CAPS"
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """
    The mean β over all pairs of a state and an option whose β has been updated there, by whether the option's action is
    optimal. (β_o(s) is used and learned only where o arrives in s.)

    :param study: the finished results
    :param name: the task
    :param sources_only: leave primitive options out
    :param variant: CAPS or a variant of it
    :return: the episodes of the snapshots, the mean of non-optimal options and the mean of the others, of shape
        (snapshots, runs)
    """
    theta = study.array(variant, name, "snapshot_theta").astype(float)
    right = optimal_actions(name)
    by_source = np.stack([right[np.arange(len(right)), optimum(source).policy] for source in SOURCE_TASKS], axis=1)
    optimal = np.concatenate([by_source, right], axis=1)
    if sources_only:
        theta, optimal = theta[..., :N_SOURCES], by_source
    on = task(name)
    cells = on.map.start_cells(on.map.goal_cell(on.goal))
    theta, optimal = theta[:, :, cells], optimal[cells]
    beta, updated = termination(theta), theta != 0.0
    episodes = [max(1, round(share * study.results.episodes)) for share in BATCHES["caps"].snapshots]
    return episodes, _mean_where(beta, updated & ~optimal), _mean_where(beta, updated & optimal)


def _mean_where(beta: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The mean over states and options; before the first update it is the start, one half."""
    counts = where.sum(axis=(2, 3))
    return np.where(counts, np.where(where, beta, 0.0).sum(axis=(2, 3)) / counts.clip(1), 0.5)
