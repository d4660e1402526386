"""The rules of Monster Kong once more, slow and plain: one agent, one tile at a time, distances in exact fractions."""

from dataclasses import dataclass, replace
from fractions import Fraction

from sb3_caps.envs.monster_kong.level import Level

TILE = 15
FINEST = Fraction(1, 20)


@dataclass(frozen=True)
class Agent:
    """Left and upper edge in pixels, and pixels a step downwards."""

    x: Fraction
    y: Fraction
    velocity: Fraction = Fraction(0)


def tiles_under(level: Level, x: Fraction, y: Fraction) -> list[tuple[int, int]]:
    """Rows and columns of all tiles that a box overlaps, found by looking at every one around it."""
    near_row, near_column = round(y / TILE), round(x / TILE)
    return [
        (row, column)
        for row in range(near_row - 1, near_row + 2)
        for column in range(near_column - 1, near_column + 2)
        if abs(x - column * TILE) < TILE and abs(y - row * TILE) < TILE
    ]


def in_bricks(level: Level, x: Fraction, y: Fraction) -> bool:
    return any(level.solid[tile] for tile in tiles_under(level, x, y))


def stands(level: Level, x: Fraction, y: Fraction) -> bool:
    return in_bricks(level, x, y + FINEST)


def holds(level: Level, x: Fraction, y: Fraction) -> bool:
    tiles = tiles_under(level, x, y) + tiles_under(level, x, y + FINEST)
    return any(level.ladder[tile] for tile in tiles)


def reference_step(level: Level, agent: Agent, action: str) -> Agent:
    """One step, as the documentation tells it."""
    agent = walk_or_climb(level, agent, action)
    carried = agent.velocity == 0 and (stands(level, agent.x, agent.y) or holds(level, agent.x, agent.y))
    velocity = agent.velocity
    if carried:
        if action != "jump" or not stands(level, agent.x, agent.y):
            return agent
        velocity = Fraction(-7)

    # Move a twentieth of a pixel at a time until something is in the way.
    y, bumped = agent.y, False
    direction = FINEST if velocity > 0 else -FINEST
    for _ in range(int(abs(velocity) / FINEST)):
        if in_bricks(level, agent.x, y + direction):
            bumped = True
            break
        y += direction
    if velocity >= 0 and stands(level, agent.x, y):
        return Agent(agent.x, y)
    if not stands(level, agent.x, y) and holds(level, agent.x, y):
        return Agent(agent.x, y // Fraction(5, 2) * Fraction(5, 2))
    if bumped:
        velocity = Fraction(0)
    return Agent(agent.x, y, min(velocity + Fraction(85, 100), Fraction(8)))


def walk_or_climb(level: Level, agent: Agent, action: str) -> Agent:
    if action in ("left", "right"):
        x = agent.x + (5 if action == "right" else -5)
        return agent if in_bricks(level, x, agent.y) else replace(agent, x=x)
    if action in ("up", "down") and agent.velocity == 0 and holds(level, agent.x, agent.y):
        y = agent.y + (Fraction(5, 2) if action == "down" else -Fraction(5, 2))
        if in_bricks(level, agent.x, y) or (action == "up" and not holds(level, agent.x, y)):
            return agent
        return replace(agent, y=y)
    return agent


def touches_spike(level: Level, agent: Agent) -> bool:
    """A row of the triangle at a depth below its tip is as wide as the depth; look at every twentieth of a pixel."""
    for row, column in tiles_under(level, agent.x, agent.y):
        if not level.spike[row, column]:
            continue
        deepest = min(agent.y + TILE, Fraction((row + 1) * TILE)) - row * TILE
        middle = column * TILE + Fraction(TILE, 2)
        if agent.x < middle + deepest / 2 and agent.x + TILE > middle - deepest / 2:
            return True
    return False
