"""``sb3-caps explore``: what the page holds, and what a browser makes of it."""

import base64
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

import sb3_caps.envs  # noqa: F401 registers the grid
from sb3_caps import CAPS, as_source
from sb3_caps.caps.gate import ACTOR
from sb3_caps.commands import main
from sb3_caps.explorer import page, record
from sb3_caps.explorer.pictures import MAX_SIZE, Pictures, data_uri
from sb3_caps.explorer.recording import _unit_of_values, camera_on
from sb3_caps.reuse.episodes import Behaviour
from tests.toy_world import Corridor, go_left, go_right

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
GRID = "sb3_caps/GridTargetPrime-v0"
SLASHED = "up </script><b>&"


def balance(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)


def go_up(cells: np.ndarray) -> np.ndarray:
    return np.zeros(len(cells), dtype=np.int64)


def images() -> gym.Env:
    return Corridor("image")


def many() -> VecEnv:
    return make_vec_env("CartPole-v1", n_envs=2)


def normalized() -> VecEnv:
    return VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]), training=False)


def cart_pole() -> CAPS:
    return CAPS("MlpPolicy", "CartPole-v1", source_policies=[balance], seed=0)


def grid_model() -> CAPS:
    return CAPS("MlpPolicy", gym.make(GRID), source_policies=[as_source(go_up, name=SLASHED), go_left], seed=0)


def recording(model: CAPS, env: Any, episodes: int = 1, max_steps: int = 1000) -> dict[str, Any]:
    seen, camera = camera_on(env)
    return record(model, seen, camera, episodes, seed=3, max_steps=max_steps)


def data_of(html: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    return json.loads(found)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_recording_is_what_evaluation_sees() -> None:
    model = cart_pole()
    model.gate.controller = Behaviour("balance", is_source=True)  # it keeps the pole up
    found = recording(model, gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=20), episodes=2)
    assert [option["name"] for option in found["options"]] == ["balance", "action_0", "action_1"]
    assert [option["source"] for option in found["options"]] == [True, False, False]
    lengths = [len(episode["rewards"]) for episode in found["episodes"]]
    assert [episode["end"] for episode in found["episodes"]] == ["truncated"] * 2
    env = make_vec_env("CartPole-v1", seed=3, env_kwargs={"max_episode_steps": 20})
    observations = np.asarray(env.reset())
    assert np.allclose(found["episodes"][0]["values"][0], model.policy.values_and_terminations(observations)[0], 1e-3)
    assert lengths == [evaluate_policy(model, env, n_eval_episodes=1)[0]] * 2
    for episode, length in zip(found["episodes"], lengths, strict=True):
        for key in ("options", "actions", "values", "terminations"):
            assert len(episode[key]) == length
        assert {len(row) for row in episode["values"] + episode["terminations"]} == {3}
        # The state at the end has a picture, too
        assert len(episode["frames"]) == length + 1
    assert found["map"] is None
    assert found["ending"].startswith("Here balance acts alone")


def test_values_are_in_rewards() -> None:
    env = gym.make("CartPole-v1", max_episode_steps=20)
    model = cart_pole()
    model._scale.value = 50.0
    found = recording(model, env)
    assert found["unit"] == "in rewards, discounted by 0.99 in each step"
    first = np.asarray(make_vec_env("CartPole-v1", seed=3).reset())
    values = model.policy.values_and_terminations(first)[0][0]
    assert np.allclose(found["episodes"][0]["values"][0], 50.0 * values, rtol=1e-3)
    model._scale.use(False)
    assert np.allclose(recording(model, env)["episodes"][0]["values"][0], values, rtol=1e-3)
    model = CAPS("MlpPolicy", VecNormalize(make_vec_env("CartPole-v1")), source_policies=[balance])
    assert _unit_of_values(model)[1].startswith("in rewards as VecNormalize scales them, ")


def test_the_page_says_when_options_end() -> None:
    env = gym.make("CartPole-v1")
    assert "a source where another option's value is higher" in recording(cart_pole(), env, max_steps=2)["ending"]
    model = CAPS("MlpPolicy", "CartPole-v1", source_policies=[balance], termination=0.5)
    found = recording(model, env, max_steps=2)
    assert found["ending"] == "Here an option ends from 0.5 on."
    model.gate.controller = ACTOR
    assert recording(model, env, max_steps=2)["ending"].startswith("Here the actor chooses an option in every step")


def test_the_last_picture_is_of_the_last_state() -> None:
    env = gym.make(GRID, render_mode="rgb_array", horizon=12)
    found = recording(grid_model(), env)
    episode = found["episodes"][0]
    assert len(episode["frames"]) == len(episode["places"]) == len(episode["rewards"]) + 1
    picture = np.asarray(Image.open(io.BytesIO(decoded(found["frames"][episode["frames"][-1]]))).convert("RGB"))
    row, column = (np.array(episode["places"][-1]) * 24).astype(int)
    assert picture[row, column].tolist() == [226, 87, 76]  # the agent's colour


def test_an_episode_without_end_is_cut() -> None:
    (first, second) = recording(grid_model(), gym.make(GRID), episodes=2, max_steps=4)["episodes"]
    assert first["end"] == second["end"] == "cut"
    assert len(first["rewards"]) == 4
    assert len(first["places"]) == 5
    assert first["frames"] == []


def test_the_map_says_what_is_done_in_each_cell() -> None:
    model = grid_model()
    found = recording(model, gym.make(GRID), max_steps=3)
    drawn, n_cells = found["map"], np.size(found["map"]["walls"])
    assert [option["name"] for option in found["options"]][2:] == found["actions"] == ["up", "down", "left", "right"]
    actions, cells = np.array(drawn["actions"]), np.arange(n_cells)
    values, _ = model.policy.values_and_terminations(cells)
    assert drawn["best"] == values.argmax(axis=1).tolist()
    # What the model does, whoever it acts by, and an option that does the same
    assert drawn["taken"] == actions[cells, drawn["best"]].tolist() == actions[cells, drawn["simplest"]].tolist()
    model.gate.controller = Behaviour(model.options.source_names[0], is_source=True)
    drawn = recording(model, gym.make(GRID), max_steps=3)["map"]
    assert set(drawn["taken"]) == set(drawn["simplest"]) == {0}
    assert drawn["goal"] == gym.make(GRID).get_wrapper_attr("goal")


def decoded(address: str) -> bytes:
    return base64.b64decode(address.partition(",")[2])


def test_a_picture_is_stored_once_and_exactly() -> None:
    pictures = Pictures()
    picture = np.random.default_rng(0).integers(0, 4, (30, 40, 3), dtype=np.uint8) * 60
    assert [pictures.add(each) for each in (picture, picture + 1, picture.copy())] == [0, 1, 0]
    assert len(pictures.addresses) == 2
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(decoded(pictures.addresses[0]))).convert("RGB")), picture)
    many_colours = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(decoded(data_uri(many_colours))))), many_colours)


def test_large_pictures_become_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 1800, 3), dtype=np.uint8)
    address = data_uri(noise)
    assert address.startswith("data:image/jpeg;base64,")
    assert Image.open(io.BytesIO(decoded(address))).size == (MAX_SIZE, MAX_SIZE // 2)
    with pytest.raises(ValueError, match=r"render\(\) must return an array of uint8"):
        Pictures().add(noise / 2)


def test_the_page_needs_nothing_else() -> None:
    found = recording(grid_model(), gym.make(GRID, render_mode="rgb_array"), max_steps=3)
    html = page(found, SLASHED)
    assert data_of(html) == {"title": SLASHED, **found}
    assert "{{" not in html
    # The name of SVG's elements is the only address
    assert set(re.findall(r"https?://[^\"' ]*", html)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r'(?:src|href)="[^"]*"', html) == []


@pytest.mark.parametrize("name", ["{{script}}", "{{data}}{{style}}", "{{title}}", "\\1 \\g<0>", "</title><b>&"])
def test_any_name_of_a_model(name: str) -> None:
    found = recording(grid_model(), gym.make(GRID), max_steps=2)
    html = page(found, name)
    assert data_of(html)["title"] == name
    # All else is as it is with any other name
    escaped = name.replace("&", "&amp;").replace("<", "&lt;")
    assert f"<title>{escaped}</title>" in html
    in_data = json.dumps(name).replace("<", "\\u003c")
    assert html == page(found, "other").replace("<title>other<", f"<title>{escaped}<").replace('"other"', in_data, 1)


@pytest.mark.parametrize(
    ("env", "extra", "with_frames"),
    [
        ("CartPole-v1", ["--episodes", "2"], True),
        ("CartPole-v1", ["--no-frames"], False),
        (f"{__name__}:normalized", [], False),
    ],
)
def test_the_command(
    env: str, extra: list[str], with_frames: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cart_pole().save("run")
    assert main(["explore", "run.zip", "--env", env, "--max-steps", "5", "-o", "pages/run.html", *extra]) == 0
    found = data_of((folder / "pages/run.html").read_text("utf-8"))
    assert bool(found["frames"]) is with_frames
    assert found["title"] == f"run in {env}"
    out = capsys.readouterr().out
    assert out.count("return 5 in 5 steps, cut") == len(found["episodes"])
    assert "pages/run.html" in out


def test_images_and_environments_of_ones_own(folder: Path) -> None:
    CAPS("CnnPolicy", images(), source_policies=[go_right], buffer_size=10).save("run")
    assert main(["explore", "run", "--env", f"{__name__}:images"]) == 0
    assert len(data_of((folder / "explore.html").read_text("utf-8"))["episodes"]) == 3


class Doubled(gym.ObservationWrapper):
    def observation(self, observation: np.ndarray) -> np.ndarray:
        return 2 * observation


def test_a_run_is_explored_in_the_environment_that_it_was_trained_in(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrapper: dict[str, Any] = {f"{__name__}.Doubled": {}}
    entry: dict[str, Any] = {"policy": "MlpPolicy", "n_timesteps": 60, "env_wrapper": [wrapper]}
    entry |= {"normalize": True, "env_kwargs": {"sutton_barto_reward": True}}
    (folder / "own.yml").write_text(json.dumps({"CartPole-v1": entry}))
    train = ["train", "--env", "CartPole-v1", "-conf", "own.yml", "--eval-freq", "-1", "--seed", "1"]
    assert main(train) == 0
    run = Path("logs", "caps", "CartPole-v1_1")
    model = CAPS.load(run / "CartPole-v1.zip")
    for env in ([], ["--env", "CartPole-v1"]):
        assert main(["explore", str(run), *env, "--episodes", "1", "--seed", "5"]) == 0
        found = data_of((folder / "explore.html").read_text("utf-8"))
        (episode,) = found["episodes"]
        assert found["title"] == "CartPole-v1 in CartPole-v1"
        # As it pays by Sutton and Barto: nothing until the pole falls
        assert sum(episode["rewards"]) == -1
        assert len(episode["frames"]) == len(episode["rewards"]) + 1
        first = make_vec_env("CartPole-v1")
        first.seed(5)
        normalizer = VecNormalize.load(str(run / "CartPole-v1" / "vecnormalize.pkl"), first)
        seen: Any = normalizer.normalize_obs(2 * np.asarray(first.reset()))
        expected = model._scale.value * model.policy.values_and_terminations(seen)[0][0]
        assert np.allclose(episode["values"][0], expected, rtol=1e-3)
    # As `enjoy` shows it
    capsys.readouterr()
    assert main(["enjoy", "--env", "CartPole-v1", "--no-render", "-n", "200"]) == 0
    assert "Episode Reward: -1.00" in capsys.readouterr().out


def test_the_normalisation_that_was_saved_is_used(folder: Path) -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", seed=1))
    model = CAPS("MlpPolicy", env, source_policies=[balance], learning_starts=10, seed=0).learn(200)
    model.save("run")
    (folder / "run").mkdir()
    env.save(str(folder / "run/vecnormalize.pkl"))
    assert main(["explore", "run.zip", "--env", "CartPole-v1", "--no-frames", "--max-steps", "1"]) == 0
    found = data_of((folder / "explore.html").read_text("utf-8"))["episodes"][0]["values"][0]
    first = make_vec_env("CartPole-v1")
    first.seed(0)
    seen = env.normalize_obs(np.asarray(first.reset()))
    assert np.allclose(found, model._scale.value * model.policy.values_and_terminations(seen)[0][0], rtol=1e-3)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run.zip", "--env", "CartPole-v1", "--episodes", "0"], "episodes must be at least 1"),
        (["run.zip", "--env", "Acrobot-v1"], "spaces do not match"),
        (["run.zip", "--env", "NoSuchThing-v0"], "NoSuchThing"),
        (["run.zip", "--env", f"{__name__}:many"], "follows one environment, not DummyVecEnv of 2"),
        (["run.zip", "--env", f"{__name__}:cart_pole"], "must return an environment, not CAPS"),
        (["dqn.zip", "--env", "CartPole-v1"], "is not a CAPS model"),
        (["nothing.zip", "--env", "CartPole-v1"], "no saved model at nothing.zip"),
        (["run.zip"], "run.zip is not in the folder of a run, which would say in which environment: pass --env"),
    ],
)
def test_what_it_refuses(argv: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cart_pole().save("run")
    DQN("MlpPolicy", "CartPole-v1").save("dqn")
    assert main(["explore", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "explore.html").exists()


def dom(file: Path, place: str) -> str:
    """What a browser has made of the page."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={file.parent / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", f"{file.as_uri()}#{place}"], capture_output=True, text=True, timeout=120, check=True
    )
    return re.sub(r'<script type="application/json".*?</script>', "", done.stdout, flags=re.DOTALL)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_a_step(tmp_path: Path) -> None:
    found = recording(grid_model(), gym.make(GRID, render_mode="rgb_array"), episodes=2, max_steps=6)
    file = tmp_path / "page.html"
    file.write_text(page(found, SLASHED), "utf-8")
    html, episode = dom(file, "2,3"), found["episodes"][1]
    assert ">step 3 of 6<" in html
    assert f'id="ending">{found["ending"]}<' in html
    name = found["options"][episode["options"][3]]["name"].replace("&", "&amp;").replace("<", "&lt;")
    assert f">{name.replace('>', '&gt;')}</b>" in html
    assert f"Action: {found['actions'][episode['actions'][3]]}, reward 0" in html
    # A line for each option in each of the two charts, from 0 to 1 in that of β
    assert html.count('class="line"') == 2 * len(found["options"])
    chart = html.partition('id="terminations"')[2].partition("</svg>")[0]
    assert re.findall(r'text-anchor="end">([\d.]+)<', chart) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert found["frames"][episode["frames"][3]] in html
    walls = np.array(found["map"]["walls"])
    assert html.count("data-cell=") == np.count_nonzero(walls == 0)
    (way, _) = re.findall(r'class="way"[^>]*points="([^"]*)"', html)
    assert len(way.split()) == 4


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_numbers_where_there_are_no_pictures(tmp_path: Path) -> None:
    found = recording(cart_pole(), gym.make("CartPole-v1", max_episode_steps=5))
    file = tmp_path / "page.html"
    file.write_text(page(found, "bare"), "utf-8")
    html = dom(file, "1,100000")
    n_steps = len(found["episodes"][0]["rewards"])
    assert f"step {n_steps} of {n_steps}" in html
    assert f"The time limit ended the episode here.<br>Return so far: {n_steps}<" in html
    assert re.search(r'<img id="frame"[^>]*hidden=""', html)
    assert re.search(r'<figure id="map" hidden=""', html)
