"""The names of source policies in logs, tables and files."""

import re
import warnings
from collections.abc import Sequence

from sb3_caps.sources.act import SourcePolicy

# By these, logs and summaries tell of what else acts: learners, and what they are compared with
RESERVED = frozenset(
    [
        "options",
        "actor",
        "sampled actor",
        "best options",
        "peak actor",
        "exploring",
        "mixing",
        "random",
        "learned",
        "learner",
    ]
)
# They would break a table, make one name two, or be a formula in a figure
UNSAFE = re.compile(r"[\x00-\x1f\x7f,/$]+")


def unique_names(sources: Sequence[SourcePolicy], taken: Sequence[str] = ()) -> list[str]:
    """
    Name sources. Names that the user gave stay as they are; the others get a number when they are taken.

    :param sources: the sources
    :param taken: names that other things have
    :return: a name for each source, without commas, slashes, dollars and line breaks
    """
    safe = [UNSAFE.sub("_", source.name) for source in sources]
    known = {*taken, *RESERVED}
    for source, name in zip(sources, safe, strict=True):
        if source.explicit_name:
            if name in RESERVED:
                raise ValueError(f"'{name}' is what logs call something else: give the source policy another name.")
            if name in known:
                raise ValueError(f"Two options are named '{name}': give each source policy a name of its own.")
            if name != source.name:
                warnings.warn(
                    f"Source policy {source.name!r} is called {name!r}: names in tables and logs have no commas, "
                    "slashes, dollars and line breaks.",
                    stacklevel=2,
                )
            known.add(name)
    names = []
    for source, name in zip(sources, safe, strict=True):
        unique, number = name, 2
        while not source.explicit_name and unique in known:
            unique, number = f"{name}_{number}", number + 1
        known.add(unique)
        names.append(unique)
    return names
