"""``sb3-caps play``, without a window and under SDL's dummy driver."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_caps.commands import main
from sb3_caps.commands.play import show_title

pygame = pytest.importorskip("pygame")


def test_a_policy_plays_and_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    gif = tmp_path / "runs" / "optimal.gif"
    arguments = ["play", "monster-kong", "--map", "b", "--goal", "gem", "--policy", "optimal", "--start", "28,24"]
    assert main([*arguments, "--no-window", "--record", str(gif)]) == 0
    told = capsys.readouterr().out
    assert "the gem is reached after" in told
    steps = int(told.split("after ")[1].split(" ")[0])
    with image.open(gif) as recorded:
        # Viewers show equal frames for longer, so that they are stored once.
        assert 0.5 * steps < recorded.n_frames <= steps + 1
        assert recorded.size == (495, 465)


def test_actions_are_played_in_a_window_and_recorded_as_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "frames"
    arguments = ["play", "monster-kong", "--start", "5,29", "--actions", "2rj3l", "--record", str(folder)]
    assert main(arguments) == 0
    assert "the actions ended after 6 steps" in capsys.readouterr().out
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"{number:05}.png" for number in range(7)]
    first, second = (np.asarray(image.open(file)) for file in files[:2])
    assert first.shape == (465, 495, 3)
    assert (first != second).any()


def test_a_random_policy_is_repeatable_and_stops_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["play", "monster-kong", "--policy", "random", "--seed", "4", "--episodes", "3", "--no-window"]
    main([*arguments, "--max-steps", "50"])
    first = capsys.readouterr().out
    main([*arguments, "--max-steps", "50"])
    assert capsys.readouterr().out == first
    assert first.count("Episode") == 3


def test_a_person_plays(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pygame.init()
    pygame.display.set_mode((10, 10))
    pygame.event.clear()
    # The first key leaves the title, the second one jumps
    for key in (pygame.K_RETURN, pygame.K_SPACE):
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
    quitting = pygame.event.Event(pygame.KEYDOWN, key=pygame.K_q)
    pygame.time.set_timer(quitting, 400, loops=1)
    assert main(["play", "monster-kong", "--start", "5,29", "--record", str(tmp_path)]) == 0
    files = sorted(tmp_path.iterdir())
    standing, jumping = (np.asarray(image.open(file)) for file in files[:2])
    # The jump lifted the agent; the steps left, in the upper border, count down
    rows = np.flatnonzero((standing != jumping).any(axis=(1, 2)))
    assert 15 <= rows[rows >= 15].min() < 29 * 15
    assert rows.min() < 15


@pytest.mark.parametrize(("key", "plays"), [(pygame.K_SPACE, True), (pygame.K_q, False), (pygame.K_ESCAPE, False)])
def test_the_title_tells_the_keys_and_waits_for_one(key: int, plays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    window = pygame.display.set_mode((990, 930))
    window.fill((0, 90, 0))
    written: list[str] = []
    font = pygame.font.Font

    class Recorded:
        def __init__(self, name: None, size: int) -> None:
            self.font = font(name, size)

        def render(self, text: str, *style: Any) -> Any:
            written.append(text)
            image = self.font.render(text, *style)
            assert image.get_width() < 990
            return image

    monkeypatch.setattr(pygame.font, "Font", Recorded)
    pygame.event.clear()
    pygame.event.post(pygame.event.Event(pygame.KEYUP, key=pygame.K_SPACE))
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))
    assert show_title(pygame, window, "coin") is plays
    assert {"Monster Kong", "reach the coin", "space: jump", "Q or Escape: quit"} <= set(written)
    pixels = pygame.surfarray.array3d(window)
    # The game is dimmed behind bright letters
    assert np.median(pixels[..., 1]) < 45
    assert (pixels > 240).all(axis=2).sum() > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-window"], "add --policy or --actions"),
        (["--map", "nowhere", "--policy", "random"], "no such file"),
        (["--start", "0,0", "--policy", "random", "--no-window"], "No start at column 0, row 0"),
        (["--policy", "random", "--record", "film.mp4"], "ends in .gif"),
    ],
)
def test_what_cannot_be_played_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", "monster-kong", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a display without saying so")
def test_nobody_plays_unseen() -> None:
    hidden = ("SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [sys.executable, "-m", "sb3_caps", "play", "monster-kong", "--policy", "random", "--max-steps", "5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    # SDL may have its own say before
    assert done.stderr.splitlines()[-1].startswith("sb3-caps play: There is no display: add --no-window")
    done = subprocess.run([*command, "--no-window"], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--actions", "5x"], ["--actions", "5"], ["--start", "5"], ["--max-steps", "0"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["play", "monster-kong", *arguments])
