"""``sb3-caps play``: play a game by hand, or let a policy play, and record it."""

import argparse
import itertools
import os
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_caps.envs.monster_kong.env import HORIZON, MonsterKongEnv
from sb3_caps.envs.monster_kong.level import GOALS
from sb3_caps.envs.monster_kong.physics import DOWN, JUMP_UP, LEFT, NOOP, RIGHT, UP
from sb3_caps.envs.monster_kong.sprites import PALETTE
from sb3_caps.extras import require
from sb3_caps.studies.shared.arguments import check_at_least

# One letter for each action in --actions; a number before it repeats it.
ACTION_LETTERS = {"u": UP, "d": DOWN, "l": LEFT, "r": RIGHT, "j": JUMP_UP, "n": NOOP}
KEYS = {"up": UP, "w": UP, "down": DOWN, "s": DOWN, "left": LEFT, "a": LEFT, "right": RIGHT, "d": RIGHT}
CONTROLS = {
    "arrows or WASD": "move and climb",
    "space": "jump",
    "R": "start again",
    "Q or Escape": "quit",
}
TOLD_CONTROLS = ", ".join(f"{keys} to {effect}" for keys, effect in CONTROLS.items())
TITLE_COLOUR, TEXT_COLOUR = PALETTE["y"], PALETTE["w"]
# GIF counts in hundredths of a second, and viewers slow down anything shorter than this.
GIF_MILLISECONDS = 30

Choice = Callable[[MonsterKongEnv], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """
    :param parser: the parser of the command
    """
    parser.epilog = f"Keys: {TOLD_CONTROLS}."
    parser.add_argument("game", choices=["monster-kong"], help="what to play")
    parser.add_argument("--map", default="a", help="a, b, or the path of a map (default: a)")
    parser.add_argument("--goal", default="princess", choices=list(GOALS), help="what to reach (default: princess)")
    parser.add_argument("--start", type=_tile, metavar="COLUMN,ROW", help="the tile to start from (default: random)")
    parser.add_argument("--seed", type=int, help="seed of the starts and of a random policy")
    player = parser.add_mutually_exclusive_group()
    player.add_argument("--policy", choices=["optimal", "random"], help="let a policy play instead of the keyboard")
    player.add_argument(
        "--actions",
        type=_actions,
        metavar="LETTERS",
        help="play these actions: u, d, l, r, j (jump), n (no-op), a number before one repeats it, as in 6rj12r",
    )
    parser.add_argument("--episodes", type=_positive, default=1, help="how many episodes a policy plays (default: 1)")
    parser.add_argument(
        "--max-steps", type=_positive, default=HORIZON, help=f"steps of an episode (default: {HORIZON})"
    )
    parser.add_argument(
        "--record", type=Path, metavar="PATH", help="a file that ends in .gif, or a folder for PNG files"
    )
    parser.add_argument("--no-window", action="store_true", help="open no window; needs --policy or --actions")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def _tile(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"pass a column and a row, as in 5,14, not {text!r}")
    return int(parts[0]), int(parts[1])


def _actions(text: str) -> list[int]:
    actions: list[int] = []
    number = ""
    for letter in text.lower():
        if letter.isdigit():
            number += letter
        elif letter in ACTION_LETTERS:
            actions += [ACTION_LETTERS[letter]] * int(number or 1)
            number = ""
        else:
            raise argparse.ArgumentTypeError(f"unknown action {letter!r}: the letters are {', '.join(ACTION_LETTERS)}")
    if not actions or number:
        raise argparse.ArgumentTypeError(f"pass letters with numbers before them, as in 6rj12r, not {text!r}")
    return actions


def run(args: argparse.Namespace) -> int:
    """
    :param args: what ``add_arguments`` defined
    :return: the exit code
    """
    check_at_least(0, seed=args.seed)
    by_hand = args.policy is None and args.actions is None
    if by_hand and args.no_window:
        raise ValueError("--no-window leaves nobody to play: add --policy or --actions.")
    if not args.no_window:
        check_display()
    recorder = Recorder(args.record) if args.record else None
    env = MonsterKongEnv(
        args.map,
        args.goal,
        observation="features",
        horizon=args.max_steps,
        render_mode="rgb_array" if args.no_window else "human",
    )
    try:
        if by_hand:
            print(f"Reach the {args.goal}: {TOLD_CONTROLS}.")
            _play_by_hand(env, args, recorder)
        else:
            _play_policy(env, args, recorder)
    finally:
        env.close()
    if recorder is not None:
        print(f"Recorded {recorder.save()} pictures in {args.record}.")
    return 0


def check_display() -> None:
    """Refuse to play unseen: where there is no display, SDL falls back to drivers that show nothing."""
    pygame = require("pygame", "games")
    if os.environ.get("SDL_VIDEODRIVER"):
        # Whoever names a driver means it
        return
    try:
        pygame.display.init()
        driver = pygame.display.get_driver()
    except pygame.error:
        driver = "none"
    if driver in ("none", "dummy", "offscreen"):
        raise ValueError("There is no display: add --no-window with --policy or --actions, and --record to look at it.")


def _play_policy(env: MonsterKongEnv, args: argparse.Namespace, recorder: "Recorder | None") -> None:
    episodes = 1 if args.actions is not None else args.episodes
    seed = args.seed
    for episode in range(episodes):
        options = {"start": args.start} if args.start else None
        env.reset(seed=seed, options=options)
        seed = None
        choices = iter(args.actions) if args.actions is not None else _choices(env, args.policy, args.seed)
        _record(env, recorder)
        for action in choices:
            _, _, terminated, truncated, info = env.step(action)
            _record(env, recorder)
            if terminated or truncated:
                print(f"Episode {episode + 1}: {_outcome(info, truncated, env)}")
                break
        else:
            print(f"Episode {episode + 1}: the actions ended after {env.steps} steps, before the episode did.")


def _choices(env: MonsterKongEnv, policy: str, seed: int | None) -> Iterator[int]:
    """The actions of a policy, one at a time, for as long as they are asked for."""
    if policy == "optimal":
        return (env.optimal_action() for _ in itertools.count())
    if seed is not None:
        env.action_space.seed(seed)
    return (int(env.action_space.sample()) for _ in itertools.count())


def _play_by_hand(env: MonsterKongEnv, args: argparse.Namespace, recorder: "Recorder | None") -> None:
    """One action for each frame: the key that is held down, or the jump that was pressed since the last frame."""
    pygame = require("pygame", "games")
    options = {"start": args.start} if args.start else None
    env.reset(seed=args.seed, options=options)
    if not show_title(pygame, pygame.display.get_surface(), args.goal):
        return
    _record(env, recorder)
    for _ in itertools.count():
        jump = False
        for event in pygame.event.get():
            if _is_quit(pygame, event):
                return
            if event.type == pygame.KEYDOWN and event.key == pygame.K_r:
                env.reset(options=options)
            jump |= event.type == pygame.KEYDOWN and event.key == pygame.K_SPACE
        _, _, terminated, truncated, info = env.step(JUMP_UP if jump else _held_action(pygame))
        _record(env, recorder)
        if terminated or truncated:
            print(_outcome(info, truncated, env))
            env.reset(options=options)


def show_title(pygame: Any, window: Any, goal: str) -> bool:
    """
    Show what to do and with which keys, over the game, until a key is pressed.

    :param pygame: the module
    :param window: what to draw on
    :param goal: the object to reach
    :return: whether to play; False if the key was one to quit
    """
    pygame.font.init()
    width, height = window.get_size()
    shade = pygame.Surface((width, height))
    shade.set_alpha(190)
    window.blit(shade, (0, 0))
    unit = min(width // 26, height // 16)
    lines = [("Monster Kong", 3.0, TITLE_COLOUR), (f"reach the {goal}", 2.0, TEXT_COLOUR), ("", 1.0, TEXT_COLOUR)]
    lines += [(f"{keys}: {effect}", 1.5, TEXT_COLOUR) for keys, effect in CONTROLS.items()]
    lines += [("", 1.0, TEXT_COLOUR), ("press any key to play", 1.5, TITLE_COLOUR)]
    y = (height - sum(int(size * unit * 1.2) for _, size, _ in lines)) // 2
    for text, size, colour in lines:
        image = pygame.font.Font(None, int(size * unit)).render(text, True, colour)
        window.blit(image, ((width - image.get_width()) // 2, y))
        y += int(size * unit * 1.2)
    while True:
        pygame.display.flip()
        # In short waits, so that Ctrl-C is heard
        event = pygame.event.wait(100)
        if _is_quit(pygame, event):
            return False
        if event.type == pygame.KEYDOWN:
            return True


def _is_quit(pygame: Any, event: Any) -> bool:
    is_key = event.type == pygame.KEYDOWN and event.key in (pygame.K_q, pygame.K_ESCAPE)
    return bool(event.type == pygame.QUIT or is_key)


def _held_action(pygame: Any) -> int:
    held = pygame.key.get_pressed()
    pressed = (action for name, action in KEYS.items() if held[pygame.key.key_code(name)])
    return next(pressed, NOOP)


def _outcome(info: dict[str, Any], truncated: bool, env: MonsterKongEnv) -> str:
    if truncated:
        return f"time is up after {env.steps} steps."
    return f"{'the ' + env.goal + ' is reached' if info['is_success'] else 'a spike'} after {env.steps} steps."


class Recorder:
    """
    Collects pictures and saves them.

    :param path: a GIF file, or a folder for PNG files
    """

    def __init__(self, path: Path) -> None:
        self._images = require("PIL.Image", "games")
        if path.suffix and path.suffix.lower() != ".gif":
            raise ValueError(f"Cannot record {path.name!r}: pass a file that ends in .gif, or a folder for PNG files.")
        self.path = path
        self.pictures: list[npt.NDArray[np.uint8]] = []

    def save(self) -> int:
        """
        Write the file or files.

        :return: the number of pictures
        """
        # It imports torch, which takes seconds, and whoever plays does without
        from sb3_caps.files.save_util import atomic_write

        if self.path.suffix:
            with atomic_write(self.path) as file:
                self._save_gif(file)
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            for number, picture in enumerate(self.pictures):
                with atomic_write(self.path / f"{number:05}.png") as file:
                    self._images.fromarray(picture).save(file, format="PNG")
        return len(self.pictures)

    def _save_gif(self, file: BufferedIOBase) -> None:
        """With one palette for all pictures: the game has fewer than 256 colours, so none of them changes."""
        # Weights that make one number of a colour, in the order of red, green, blue.
        weights = np.array([65536, 256, 1])
        palette = np.unique(np.concatenate([self.pictures[0].reshape(-1, 3), list(PALETTE.values())]), axis=0)
        frames = []
        for picture in self.pictures:
            frame = self._images.fromarray(np.searchsorted(palette @ weights, picture @ weights).astype(np.uint8))
            frame.putpalette(palette.astype(np.uint8).tobytes())
            frames.append(frame)
        # The last picture stays for a second.
        durations = [GIF_MILLISECONDS] * (len(frames) - 1) + [1000]
        frames[0].save(file, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0)


def _record(env: MonsterKongEnv, recorder: Recorder | None) -> None:
    if recorder is not None:
        recorder.pictures.append(env.picture())
