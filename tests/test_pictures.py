"""What figures share: colours, bands, sizes, and maps that say no more than is known."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from sb3_caps import CAPS, as_source
from sb3_caps.colours import SOURCE_COLOURS
from sb3_caps.commands.plot import Curve, draw_curves
from sb3_caps.envs.grid import GridEnv, GridMap
from sb3_caps.envs.monster_kong.env import MonsterKongEnv
from sb3_caps.studies import demo
from sb3_caps.studies.grid.drawing import draw_options, draw_termination
from sb3_caps.studies.grid.figures import DRAWN
from sb3_caps.studies.grid_networks.study import LABELS as NETWORK_LABELS
from sb3_caps.studies.monster_kong.methods import LABELS as KONG_LABELS
from sb3_caps.studies.monster_kong.pictures import _draw_going_on, lost_shares
from sb3_caps.studies.shared.options import simplest_options
from sb3_caps.studies.shared.plots import METHOD_COLOURS, draw_mean, method_colours, new_figure
from tests.toy_world import SMALL_MAP

REUSE = Path(__file__).parents[1] / "zoo_configs" / "reuse.yml"
GRID = GridMap.from_text("#####\n#...#\n#..x#\n#####")


def push_up(observations: np.ndarray) -> np.ndarray:
    return np.zeros(len(observations), dtype=np.int64)


def test_a_method_has_one_colour_on_every_page() -> None:
    kong, grid = method_colours(["CAPS", "PRQL", "mine", "yours"]), method_colours(["PRQL", "theirs", "CAPS"])
    assert kong["CAPS"] == grid["CAPS"] == METHOD_COLOURS["CAPS"]
    assert kong["PRQL"] == grid["PRQL"]
    assert len(set(kong.values())) == 4
    # While there are other colours, none of a method
    assert not {kong["mine"], kong["yours"], grid["theirs"]} & set(METHOD_COLOURS.values())


def test_variants_and_runs_of_a_method_are_shades_of_its_colour() -> None:
    found = method_colours(["caps Task-v0_1", "caps Task-v0_2", "ops_tl Task-v0_1", "CAPS, harmful"])
    assert found["caps Task-v0_1"] == METHOD_COLOURS["CAPS"]
    assert found["ops_tl Task-v0_1"] == METHOD_COLOURS["OPS-TL"]
    assert len(set(found.values())) == 4
    for label in ("caps Task-v0_2", "CAPS, harmful"):
        red, green, blue = (int(found[label][i : i + 2], 16) for i in (1, 3, 5))
        assert red > max(green, blue)
    assert len(method_colours([f"run {number}" for number in range(30)])) == 30


@pytest.mark.parametrize("study", ["grid", "grid-networks", "monster-kong", "reuse"])
def test_methods_of_one_study_can_be_told_apart(study: str) -> None:
    labels = {
        "grid": list(DRAWN),
        "grid-networks": list(NETWORK_LABELS.values()),
        "monster-kong": list(KONG_LABELS.values()),
        "reuse": [method["label"] for method in yaml.safe_load(REUSE.read_text())["methods"].values()],
    }[study]
    colours = method_colours(labels)
    assert len(set(colours.values())) == len(set(labels)), colours


def test_plotted_runs_have_the_colour_of_their_method() -> None:
    x = np.arange(2)
    figure = draw_curves([Curve("dqn", x, x), Curve("CAPS", x, x), Curve("CAPS", x, 2 * x)], "steps", "reward")
    (ax,) = figure.axes
    assert [line.get_color() for line in ax.lines] == [METHOD_COLOURS[name] for name in ("DQN", "CAPS", "CAPS")]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["dqn", "CAPS"]


def test_bands_end_at_what_is_possible() -> None:
    _, axes = new_figure(3, 2)
    samples = np.array([[0.0, 0.4], [0.3, 0.9], [0.1, 0.9]])
    draw_mean(axes[0, 0], np.arange(2), samples[:2], "red", "mean", bounds=(0.0, 1.0))
    assert len(axes[0, 0].collections) == 0, "two runs have none"
    draw_mean(axes[0, 0], np.arange(2), samples, "red", "mean", bounds=(0.0, 1.0))
    (band,) = axes[0, 0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.0, 1.0)


def test_of_equals_the_one_that_does_for_most_states() -> None:
    # Two sources and two actions; in each state the action of each option, and what is done
    actions = np.array([[0, 0, 0, 1], [1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1]])
    taken = np.array([0, 0, 1, 0, 0])
    # The second source does so in four states, and no source in the last
    assert simplest_options(taken, actions, 2).tolist() == [1, 1, 1, 1, 2]
    assert simplest_options(taken, actions[:, 2:], 0).tolist() == taken.tolist()


def test_a_map_of_options_is_readable_beside_its_legend() -> None:
    options = np.array([0, 3])[(np.arange(GRID.n_cells) % 2)]
    for beside in (False, True):
        _, axes = new_figure(4, 3)
        draw_options(axes[0, 0], GRID, options, options * 0, ["a", "b", "up", "right"], 2, 13, "", "x", beside)
        legend = axes[0, 0].get_legend()
        assert [text.get_text() for text in legend.get_texts()] == ["a (3)", "b (0)", "primitive (2)"]
        assert min(text.get_fontsize() for text in legend.get_texts()) >= 10
        assert "x" in [text.get_text() for text in axes[0, 0].texts]
        floor = np.asarray(axes[0, 0].images[-1].get_array())
        assert floor.shape == (4, 5, 4)
        blue = [int(SOURCE_COLOURS[0][i : i + 2], 16) for i in (1, 3, 5)]
        assert np.allclose(floor[1, [1, 3], :3] * 255, blue)
        # Nothing over walls and the goal
        assert floor[..., 3][GRID.walls].max() == floor[2, 3, 3] == 0


def test_arrows_can_be_seen_on_dark_cells() -> None:
    _, axes = new_figure(4, 3)
    beta = np.where(np.arange(GRID.n_cells) == 6, 0.9, 0.1)
    draw_termination(axes[0, 0], GRID, beta, np.zeros(GRID.n_cells, dtype=int), 13)
    (arrows,) = [item for item in axes[0, 0].get_children() if type(item).__name__ == "Quiver"]
    assert arrows.get_facecolors()[:, 0].tolist() == [1.0, *[arrows.get_facecolors()[1, 0]] * 4]
    assert arrows.get_facecolors()[1, 0] < 0.3
    assert axes[0, 0].images[-1].get_clim() == (0.0, 1.0)


def test_pictures_of_the_demo(tmp_path: Path) -> None:
    model = CAPS("MlpPolicy", GridEnv(GRID, "x"), source_policies=[as_source(push_up, name=f"s{i}") for i in range(4)])
    files = demo._draw_maps(model, GRID, GRID.goals["x"], "x", tmp_path)
    assert [file.name for file in files] == ["options.png", "terminations.png"]
    # Side by side on a page, letters of ten points stay ten pixels high
    assert all(Image.open(file).width <= 900 for file in files)


def test_what_going_on_with_a_source_costs() -> None:
    lost = lost_shares(np.array([[0.5, 1.0, 0.9], [0.0, 0.0, 0.0], [-1.0, -2.0, -1.0]]))
    assert np.allclose(lost, [[0.5, 0.0, 0.1], [0.0] * 3, [0.0] * 3])


def test_the_map_of_going_on() -> None:
    env = MonsterKongEnv(SMALL_MAP, "coin", "features")
    model = CAPS("MlpPolicy", env, source_policies=[push_up, push_up], seed=0)
    figure = _draw_going_on(model, SMALL_MAP)
    first, second = figure.axes[:2]
    assert [first.get_title(), second.get_title()] == ["going on to the push_up", "going on to the push_up_2"]
    shown = first.collections[0].get_array()
    assert len(shown) > 10
    assert shown.min() >= 0
