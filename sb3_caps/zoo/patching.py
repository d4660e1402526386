"""Replacing parts of rl_zoo3 with our own while a command runs."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def replaced(module: Any, **values: Any) -> Iterator[None]:
    """
    Replace attributes of a module for a while.

    :param module: the module
    :param values: by name
    """
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)
