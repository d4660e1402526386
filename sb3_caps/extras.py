"""Imports by name: optional dependencies where they are used, and import strings."""

import importlib
import pkgutil
from typing import Any


def require(module: str, extra: str) -> Any:
    """
    Import an optional dependency.

    :param module: the module to import, for instance ``"pygame"``
    :param extra: the extra of this package that installs it, for instance ``"games"``
    :return: the imported module
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"This needs {module}: pip install 'sb3-caps[{extra}]' ({error})") from error


def import_string(name: str) -> Any:
    """
    Import what a user names in a config or on the command line. It runs the code of its module.

    :param name: ``package.module:object``
    :return: the object
    """
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"'{name}' cannot be imported: {error}") from error
