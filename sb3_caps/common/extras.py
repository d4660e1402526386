"""Optional dependencies, imported where they are used."""

import importlib
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
