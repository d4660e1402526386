"""Gymnasium's classic control with other physics, on arrays: the same equations as its environments have."""

import numpy as np
from gymnasium import spaces

from sb3_caps.studies.reuse.worlds.batched import World

Step = tuple[np.ndarray, np.ndarray, np.ndarray]


class CartPole(World):
    """
    ``CartPole-v1``: a reward of 1 for each step that the pole stands, at most 500.

    :param gravity: in m/s²
    :param length: half the pole's length in m
    :param force: of a push in N
    :param sign: of the rewards; -1 pays for falling
    """

    MASS_CART, MASS_POLE, SECONDS, MAX_X, MAX_ANGLE = 1.0, 0.1, 0.02, 2.4, 12 * 2 * np.pi / 360

    def __init__(self, gravity: float = 9.8, length: float = 0.5, force: float = 10.0, sign: float = 1.0) -> None:
        high = np.array([2 * self.MAX_X, np.inf, 2 * self.MAX_ANGLE, np.inf], dtype=np.float32)
        super().__init__(spaces.Box(-high, high), n_actions=2, horizon=500)
        self.gravity, self.length, self.force, self.sign = gravity, length, force, sign

    def start(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return generator.uniform(-0.05, 0.05, (count, 4))

    def step(self, states: np.ndarray, actions: np.ndarray, generator: np.random.Generator) -> Step:
        _, x_dot, angle, angle_dot = states.T
        cos, sin = np.cos(angle), np.sin(angle)
        mass = self.MASS_CART + self.MASS_POLE
        push = (self.force * (2 * actions - 1) + self.MASS_POLE * self.length * angle_dot**2 * sin) / mass
        angle_acc = (self.gravity * sin - cos * push) / (self.length * (4 / 3 - self.MASS_POLE * cos**2 / mass))
        x_acc = push - self.MASS_POLE * self.length * angle_acc * cos / mass
        states = states + self.SECONDS * np.stack([x_dot, x_acc, angle_dot, angle_acc], axis=1)
        fallen = (np.abs(states[:, 0]) > self.MAX_X) | (np.abs(states[:, 2]) > self.MAX_ANGLE)
        return states, np.full(len(states), self.sign), fallen

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class MountainCar(World):
    """
    ``MountainCar-v0``: a cost of 1 for each step until the car is on the hill, at most 200.

    :param gravity: how strongly the valley pulls
    :param force: of the engine
    :param sign: of the rewards; -1 pays for staying in the valley
    """

    MIN_X, MAX_X, MAX_SPEED, GOAL = -1.2, 0.6, 0.07, 0.5

    def __init__(self, gravity: float = 0.0025, force: float = 0.001, sign: float = 1.0) -> None:
        low = np.array([self.MIN_X, -self.MAX_SPEED], dtype=np.float32)
        high = np.array([self.MAX_X, self.MAX_SPEED], dtype=np.float32)
        super().__init__(spaces.Box(low, high), n_actions=3, horizon=200)
        self.gravity, self.force, self.sign = gravity, force, sign

    def start(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return np.stack([generator.uniform(-0.6, -0.4, count), np.zeros(count)], axis=1)

    def step(self, states: np.ndarray, actions: np.ndarray, generator: np.random.Generator) -> Step:
        x, speed = states.T
        speed = speed + (actions - 1) * self.force - np.cos(3 * x) * self.gravity
        speed = np.clip(speed, -self.MAX_SPEED, self.MAX_SPEED)
        x = np.clip(x + speed, self.MIN_X, self.MAX_X)
        speed = np.where((x == self.MIN_X) & (speed < 0), 0.0, speed)
        return np.stack([x, speed], axis=1), np.full(len(x), -self.sign), (x >= self.GOAL) & (speed >= 0)

    def observe(self, states: np.ndarray) -> np.ndarray:
        return states.astype(np.float32)


class Acrobot(World):
    """
    ``Acrobot-v1``: a cost of 1 for each step until the tip is up, at most 500.

    :param lengths: of the two links in m; a centre of mass is in the middle
    :param masses: of the two links in kg
    :param sign: of the rewards; -1 pays for hanging down
    """

    GRAVITY, SECONDS, INERTIA, MAX_SPEEDS = 9.8, 0.2, 1.0, np.array([4 * np.pi, 9 * np.pi])

    def __init__(
        self, lengths: tuple[float, float] = (1.0, 1.0), masses: tuple[float, float] = (1.0, 1.0), sign: float = 1.0
    ) -> None:
        high = np.array([1, 1, 1, 1, *self.MAX_SPEEDS], dtype=np.float32)
        super().__init__(spaces.Box(-high, high), n_actions=3, horizon=500)
        self.lengths, self.masses, self.sign = lengths, masses, sign

    def start(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return generator.uniform(-0.1, 0.1, (count, 4))

    def step(self, states: np.ndarray, actions: np.ndarray, generator: np.random.Generator) -> Step:
        torque, dt = actions - 1.0, self.SECONDS
        # Runge and Kutta's method of fourth order
        k1 = self._derivative(states, torque)
        k2 = self._derivative(states + dt / 2 * k1, torque)
        k3 = self._derivative(states + dt / 2 * k2, torque)
        k4 = self._derivative(states + dt * k3, torque)
        states = states + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states[:, :2] = (states[:, :2] + np.pi) % (2 * np.pi) - np.pi
        states[:, 2:] = np.clip(states[:, 2:], -self.MAX_SPEEDS, self.MAX_SPEEDS)
        up = -np.cos(states[:, 0]) - np.cos(states[:, 0] + states[:, 1]) > 1.0
        return states, np.where(up, 0.0, -self.sign), up

    def _derivative(self, states: np.ndarray, torque: np.ndarray) -> np.ndarray:
        """The book's equations of motion."""
        (m1, m2), (l1, l2), g, inertia = self.masses, self.lengths, self.GRAVITY, self.INERTIA
        c1, c2 = l1 / 2, l2 / 2
        angle1, angle2, speed1, speed2 = states.T
        cos2, sin2 = np.cos(angle2), np.sin(angle2)
        d1 = m1 * c1**2 + m2 * (l1**2 + c2**2 + 2 * l1 * c2 * cos2) + 2 * inertia
        d2 = m2 * (c2**2 + l1 * c2 * cos2) + inertia
        phi2 = m2 * c2 * g * np.sin(angle1 + angle2)
        phi1 = -m2 * l1 * c2 * speed2 * sin2 * (speed2 + 2 * speed1) + (m1 * c1 + m2 * l1) * g * np.sin(angle1) + phi2
        acc2 = torque + d2 / d1 * phi1 - m2 * l1 * c2 * speed1**2 * sin2 - phi2
        acc2 /= m2 * c2**2 + inertia - d2**2 / d1
        return np.stack([speed1, speed2, -(d2 * acc2 + phi1) / d1, acc2], axis=1)

    def observe(self, states: np.ndarray) -> np.ndarray:
        angle1, angle2, speed1, speed2 = states.T
        parts = [np.cos(angle1), np.sin(angle1), np.cos(angle2), np.sin(angle2), speed1, speed2]
        return np.stack(parts, axis=1).astype(np.float32)
