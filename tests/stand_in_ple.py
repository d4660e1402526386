"""As much of PLE as its adapter asks for, and a small game for it."""

from typing import Any

import numpy as np


class Catch:
    """
    A game as PLE's users write them: catch what falls, one pixel a step.

    :param width: of the screen
    :param height: of the screen
    """

    def __init__(self, width: int = 12, height: int = 10) -> None:
        self.width, self.height = width, height
        self.actions = {"left": 97, "right": 100}
        self.rewards = {"positive": 1.0, "negative": -1.0, "tick": 0.0, "loss": 0.0, "win": 1.0}
        self.screen: Any = None
        self.rng = np.random.RandomState(0)
        self.score, self.place, self.column, self.row = 0.0, 0, 0, 0

    def getScreenDims(self) -> tuple[int, int]:
        return self.width, self.height

    def getGameState(self) -> dict[str, int]:
        return {"place": self.place, "column": self.column, "row": self.row}

    def start(self) -> None:
        self.score, self.place, self.row = 0.0, self.width // 2, 0
        self.column = int(self.rng.randint(self.width))

    def move(self, key: int | None) -> None:
        self.place = int(np.clip(self.place + {97: -1, 100: 1}.get(key or 0, 0), 0, self.width - 1))
        self.row += 1
        if self.over() and abs(self.place - self.column) < self.width // 2:
            self.score += self.rewards["win"]
        self.screen.fill((0, 0, 0))
        self.screen.set_at((self.column, self.row), (255, 255, 255))

    def over(self) -> bool:
        return self.row >= self.height - 1


class StandInPLE:
    """
    :param game: a game
    :param fps: as PLE's
    :param frame_skip: as PLE's
    :param reward_values: as PLE's
    :param rng: of the game
    """

    def __init__(
        self, game: Catch, fps: int, frame_skip: int, reward_values: dict[str, float], rng: np.random.RandomState
    ) -> None:
        import pygame

        pygame.display.init()  # PLE does so, and the environment counts on it
        self.game = game
        game.rewards.update(reward_values)
        game.rng = rng

    def reset_game(self) -> None:
        self.game.start()

    def act(self, key: int | None) -> float:
        before = self.game.score
        self.game.move(key)
        return self.game.score - before

    def game_over(self) -> bool:
        return self.game.over()
