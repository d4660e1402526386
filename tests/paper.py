"""The paper's settings with changes, for tests of the paper's rule."""

from typing import Any

from sb3_caps import PAPER


def paper(**changes: Any) -> dict[str, Any]:
    """
    :param changes: arguments of CAPS; dictionaries are merged into those of the paper, all else replaces
    :return: keyword arguments: ``CAPS("MlpPolicy", env, **paper(termination_kwargs={"initial": 0.1}))``
    """
    arguments: dict[str, Any] = {key: dict(value) if isinstance(value, dict) else value for key, value in PAPER.items()}
    for key, value in changes.items():
        arguments[key] = arguments[key] | value if isinstance(arguments.get(key), dict) and value else value
    return arguments
