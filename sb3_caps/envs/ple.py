"""The games of the Pygame Learning Environment (PLE) as Gymnasium environments, for those who have it installed."""

import contextlib
import importlib
import importlib.util
import io
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.wrappers import FrameStackObservation, TransformObservation

from sb3_caps.envs.resizing import resize_area
from sb3_caps.extras import require

GAMES = (
    "Catcher",
    "FlappyBird",
    "MonsterKong",
    "Pixelcopter",
    "Pong",
    "PuckWorld",
    "RaycastMaze",
    "Snake",
    "WaterWorld",
)
OBSERVATIONS = ("rgb", "gray", "state")
# What is asked of a game here, besides what PLE asks
GAME_ATTRIBUTES = ("actions", "rewards", "getScreenDims", "getGameState")
# Only an editable install brings the pictures of the games along.
INSTALL = (
    "git clone https://github.com/ntasfi/PyGame-Learning-Environment && pip install -e PyGame-Learning-Environment"
)
# Luma in 256ths: integers are much faster than PLE's own conversion, and 16 bits hold them.
LUMA = np.array([77, 150, 29], dtype=np.uint16)
# Each event adds a power of this to the score, so that the score tells how often each one happened.
EVENT_BASE = 64
METADATA: dict[str, Any] = {"render_modes": ["human", "rgb_array"], "render_fps": 30}

Events = dict[str, int]
Reward = Mapping[str, float] | Callable[[Events], float] | None


def register_envs() -> None:
    """Register ``sb3_caps/PLE-<Game>-v0`` for every game, if PLE is installed."""
    if importlib.util.find_spec("ple") is None:
        return
    for game in GAMES:
        gym.register(f"sb3_caps/PLE-{game}-v0", entry_point="sb3_caps.envs.ple:PLEEnv", kwargs={"game": game})


@contextlib.contextmanager
def _without_screen() -> Iterator[None]:
    """Let SDL start with no window and no sound, and leave the environment variables as they were."""
    names = ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "dummy"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _import_ple() -> tuple[Any, Any]:
    """The class ``PLE`` and the module with its games; on import they print about a game that needs Doom."""
    require("pygame", "games")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("ple").PLE, importlib.import_module("ple.games")
    except ImportError as error:
        raise ImportError(f"The games of PLE need the package 'ple', which is on no index: {INSTALL}") from error


class PLEEnv(gym.Env[npt.NDArray[Any], np.int64]):
    """
    ## Description
    A game of the Pygame Learning Environment (Tasfi, 2016). Several of them can run in one process, and no window opens
    unless ``render_mode="human"``.

    ## Action Space
    `Discrete(n)`: the keys of the game in its order, then no-op. `action_meanings` has their names.

    ## Observation Space
    - `"rgb"`: the screen, `Box(0, 255, (height, width, 3), uint8)`
    - `"gray"`: the same in gray, `Box(0, 255, (height, width, 1), uint8)`
    - `"state"`: the game's own numbers, `Box(-inf, inf, (n,), float32)`, for games that have them

    `preprocess` crops, resizes and stacks screens.

    ## Starting State
    As the game starts, after one step without a key: PLE draws only when it steps.

    ## Rewards
    As the game gives them, or what `reward` makes of its events ("positive", "negative", "tick", "loss", "win").

    ## Episode End
    The episode ends when the game is over, and is truncated after `horizon` steps.

    ## Arguments
    :param game: the name of a game, one of `GAMES`; or the class of a game of your own, or a function that makes one:
        each is called with `game_kwargs`
    :param observation: `"rgb"`, `"gray"` or `"state"`
    :param reward: `None` for the game's reward; or numbers for some of its events; or a function that gets how often
        each event happened in this step and returns the reward
    :param frame_skip: for how many frames an action is held
    :param horizon: the number of steps after which an episode is truncated, `None` for no limit
    :param state_function: makes an array of the game's state; needed where the state is more than a few numbers
    :param game_kwargs: arguments of the game, for instance its width and height
    :param render_mode: `None`, `"rgb_array"` or `"human"`

    ## Version History
    * v0: Initial version
    """

    metadata = METADATA

    def __init__(
        self,
        game: str | Callable[..., Any],
        observation: str = "rgb",
        reward: Reward = None,
        frame_skip: int = 1,
        horizon: int | None = None,
        state_function: Callable[[dict[str, Any]], npt.NDArray[Any]] | None = None,
        game_kwargs: dict[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not callable(game) and game not in GAMES:
            raise ValueError(
                f"Unknown game {game!r}: pass one of {GAMES}, the class of a game, or a function that makes one."
            )
        if observation not in OBSERVATIONS:
            raise ValueError(f"Unknown observation {observation!r}: pass one of {OBSERVATIONS}.")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"Unknown render_mode {render_mode!r}: pass None or one of {self.metadata['render_modes']}."
            )
        if frame_skip < 1 or (horizon is not None and horizon < 1):
            raise ValueError(f"frame_skip ({frame_skip}) and horizon ({horizon}) must be at least 1.")
        if state_function is not None and observation != "state":
            raise ValueError("state_function is for observation='state'.")
        self.game: str = getattr(game, "__name__", type(game).__name__) if callable(game) else game
        self.observation, self.horizon, self.render_mode = observation, horizon, render_mode
        self._given_game = game
        self._reward, self._state_function = reward, state_function
        self._game_kwargs, self._frame_skip = game_kwargs or {}, frame_skip
        self._make_game()
        names = list(self._game.actions)
        self.action_meanings = [*names, "no-op"]
        self._keys = [*(self._game.actions[name] for name in names), None]
        self.action_space = spaces.Discrete(len(self._keys))
        self.observation_space = self._space()
        self.steps = 0
        self._running = False
        self._window: Any = None

    def _make_game(self) -> None:
        self._pygame = require("pygame", "games")
        self._rng = np.random.RandomState(0)
        with contextlib.nullcontext() if self.render_mode == "human" else _without_screen():
            ple_class, games = _import_ple()
            make = self._given_game if callable(self._given_game) else getattr(games, self.game)
            self._game = make(**self._game_kwargs)
            if missing := [name for name in GAME_ATTRIBUTES if not hasattr(self._game, name)]:
                raise ValueError(
                    f"{self.game} does not make a game of PLE: {self._game!r} has no {', '.join(missing)}."
                )
            self._events = list(self._game.rewards)
            self.ple = ple_class(
                self._game, fps=30, frame_skip=self._frame_skip, reward_values=self._reward_values(), rng=self._rng
            )
        # The display is one for the whole process: each game draws on a surface of its own instead.
        self._game.screen = self._pygame.Surface(self._game.getScreenDims(), 0, 32)

    def _reward_values(self) -> dict[str, float]:
        if callable(self._reward):
            return {event: float(EVENT_BASE**power) for power, event in enumerate(self._events)}
        values = dict(self._reward or {})
        unknown = set(values) - set(self._events)
        if unknown:
            raise ValueError(f"{self.game} has no events {sorted(unknown)}: its events are {self._events}.")
        return values

    def _space(self) -> spaces.Box:
        if self.observation == "state":
            return spaces.Box(-np.inf, np.inf, self._state().shape, np.float32)
        width, height = self._game.getScreenDims()
        return spaces.Box(0, 255, (height, width, 3 if self.observation == "rgb" else 1), np.uint8)

    def _state(self) -> npt.NDArray[np.float32]:
        state = self._game.getGameState()
        if state is None:
            raise ValueError(f"{self.game} has no state apart from its screen: pass observation='rgb' or 'gray'.")
        if self._state_function is not None:
            return np.asarray(self._state_function(state), dtype=np.float32)
        try:
            return np.array([float(value) for value in state.values()], dtype=np.float32)
        except TypeError:
            raise ValueError(
                f"The state of {self.game} is more than a few numbers: pass a state_function that makes an array of it."
            ) from None

    def _screen(self) -> npt.NDArray[np.uint8]:
        width, height = self._game.getScreenDims()
        pixels = self._pygame.image.tobytes(self._game.screen, "RGB")
        return np.frombuffer(bytearray(pixels), dtype=np.uint8).reshape(height, width, 3)

    def _observe(self) -> npt.NDArray[Any]:
        if self.observation == "state":
            return self._state()
        screen = self._screen()
        if self.observation == "rgb":
            return screen
        red, green, blue = (screen[:, :, channel] * weight for channel, weight in enumerate(LUMA))
        return ((red + green + blue) >> 8).astype(np.uint8)[:, :, None]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """
        Start an episode.

        :param seed: seed of the game
        :param options: not used
        :return: the first observation and an empty dictionary
        """
        super().reset(seed=seed)
        if seed is not None:
            # Some games carry things over from one episode to the next: a run that can be repeated starts afresh.
            self._make_game()
        # Parts of some games keep the generator that they got first, so that one is seeded again.
        self._rng.seed(int(self.np_random.integers(2**32)))
        self._pygame.event.clear()
        self.ple.reset_game()
        self.ple.act(None)
        self.steps = 0
        self._running = True
        if self.render_mode == "human":
            self.render()
        return self._observe(), {}

    def step(self, action: np.int64 | int) -> tuple[npt.NDArray[Any], float, bool, bool, dict[str, Any]]:
        """
        One step, which is ``frame_skip`` frames of the game.

        :param action: an index of ``action_meanings``
        :return: observation, reward, terminated, truncated, information
        """
        if not self._running:
            raise ResetNeeded("Call reset() before step(): there is no episode, or it has ended.")
        if action not in self.action_space:
            raise ValueError(f"Action {action!r} is out of range: pass an index of {self.action_meanings}.")
        gained = self.ple.act(self._keys[int(action)])
        self.steps += 1
        reward = self._reward(self._decode(gained)) if callable(self._reward) else gained
        terminated = bool(self.ple.game_over())
        truncated = self.horizon is not None and self.steps >= self.horizon and not terminated
        self._running = not (terminated or truncated)
        if self.render_mode == "human":
            self.render()
        return self._observe(), float(reward), terminated, truncated, {}

    def _decode(self, gained: float) -> Events:
        """How often each event happened, from what it added to the score."""
        if gained < 0 or gained != int(gained):
            raise ValueError(f"The score of {self.game} is more than its events: pass reward=None or numbers.")
        digits = int(gained)
        counts = {}
        for event in self._events:
            digits, counts[event] = divmod(digits, EVENT_BASE)
        return counts

    def render(self) -> npt.NDArray[np.uint8] | None:
        """
        Draw the game.

        :return: the screen, or nothing if it went to a window
        """
        if self.render_mode is None:
            gym.logger.warn(
                "render() was called without a render_mode: pass 'rgb_array' or 'human' to the environment."
            )
            return None
        if self.render_mode == "rgb_array":
            return self._screen()
        if self._window is None:
            self._window = self._pygame.display.set_mode(self._game.getScreenDims())
            self._pygame.display.set_caption(self.game)
            self._clock = self._pygame.time.Clock()
        self._window.blit(self._game.screen, (0, 0))
        self._pygame.display.flip()
        self._clock.tick(self.metadata["render_fps"])
        return None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._pygame.display.quit()
            self._window = None


def preprocess(
    env: gym.Env[Any, Any],
    crop: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
    stack: int = 1,
) -> gym.Env[Any, Any]:
    """
    Crop, resize and stack screens, with Gymnasium's wrappers.

    :param env: an environment that observes screens, shape (height, width, channels)
    :param crop: pixels to cut off at the top, bottom, left and right
    :param size: height and width of the picture, each pixel the mean of what it covers
    :param stack: the number of last pictures in an observation, the newest in the last channels
    :return: the wrapped environment; SB3 takes its observations as images
    """
    if not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape) != 3:
        raise ValueError(f"preprocess() is for screens (observation='rgb' or 'gray'), not {env.observation_space}.")
    if stack < 1:
        raise ValueError(f"stack must be at least 1, not {stack}.")
    height, width, channels = env.observation_space.shape
    if crop is not None:
        top, bottom, left, right = crop
        height, width = height - top - bottom, width - left - right
        if min(*crop) < 0 or min(height, width) < 1:
            raise ValueError(f"crop={crop} leaves nothing of a screen of shape {env.observation_space.shape}.")
        window = (slice(top, top + height), slice(left, left + width))
        env = TransformObservation(env, lambda screen: screen[window], _image_space(height, width, channels))
    if size is not None:
        height, width = size
        env = TransformObservation(
            env,
            lambda screen: np.rint(resize_area(screen, *size)).astype(np.uint8),
            _image_space(height, width, channels),
        )
    if stack > 1:
        env = FrameStackObservation(env, stack)
        env = TransformObservation(
            env,
            lambda screens: np.concatenate(list(screens), axis=-1),
            _image_space(height, width, channels * stack),
        )
    return env


def _image_space(height: int, width: int, channels: int) -> spaces.Box:
    return spaces.Box(0, 255, (height, width, channels), np.uint8)
