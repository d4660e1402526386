"""What a field of a description may be: plain values of a known kind, and nothing that stands for code."""

import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# What floats can count
MOST = 2**53
# SB3's JSON marks pickled objects by keys that begin so
MARK = ":"


@dataclass(frozen=True)
class Kind:
    """
    What a field may be.

    :param accepts: the same for people
    :param read: takes what was found and the name of the field, and returns the value; raises ``ValueError``
    """

    accepts: str
    read: Callable[[Any, str], Any]


def refused(where: str, accepts: str, found: Any) -> ValueError:
    """
    :param where: the name of a field
    :param accepts: what it may be
    :param found: what it is
    :return: an error that says so
    """
    return ValueError(f"{where} must be {accepts}, not {reprlib.repr(found)}")


def check_no_marks(found: Any, where: str) -> None:
    """
    Refuse what SB3 would unpickle, wherever it is.

    :param found: what JSON holds
    :param where: the name of the field
    """
    if isinstance(found, dict):
        for key, value in found.items():
            if key.startswith(MARK):
                raise ValueError(
                    f"{where} has the key {key!r}, by which SB3 marks code; only plain values are accepted"
                )
            check_no_marks(value, f"{where}/{key}")
    elif isinstance(found, list):
        for i, value in enumerate(found):
            check_no_marks(value, f"{where}/{i}")


def _that(accepts: str, fits: Callable[[Any], bool]) -> Kind:
    def read(found: Any, where: str) -> Any:
        if not fits(found):
            raise refused(where, accepts, found)
        return found

    return Kind(accepts, read)


BOOLEAN = _that("true or false", lambda found: isinstance(found, bool))
NOTHING = _that("null", lambda found: found is None)
NAME = _that(
    "a name of 1 to 1000 printable characters",
    lambda found: isinstance(found, str) and 0 < len(found) <= 1000 and found.isprintable(),
)


def integer(least: int = 0, most: int = MOST) -> Kind:
    """
    :param least: the lowest
    :param most: the highest
    :return: an integer from one to the other
    """
    limits = f" from {least} to {most}" if most < MOST else f" of at least {least}"
    return _that(f"an integer{limits}", lambda found: type(found) is int and least <= found <= most)


def number(least: float = -math.inf, most: float = math.inf) -> Kind:
    """
    :param least: the lowest
    :param most: the highest
    :return: a finite number from one to the other
    """
    limits = f" of at least {least:g}" * (least > -math.inf)
    limits = f" from {least:g} to {most:g}" if most < math.inf else limits
    return _that(
        f"a finite number{limits}",
        lambda found: type(found) in (int, float) and abs(found) <= sys.float_info.max and least <= found <= most,
    )


def choice(*values: str) -> Kind:
    """
    :param values: some words
    :return: one of them
    """
    return _that(f"one of {', '.join(values)}", lambda found: isinstance(found, str) and found in values)


def either(*kinds: Kind) -> Kind:
    """
    :param kinds: some kinds
    :return: the first of them that fits
    """
    accepts = ", or ".join(kind.accepts for kind in kinds)

    def read(found: Any, where: str) -> Any:
        for kind in kinds:
            try:
                return kind.read(found, where)
            except ValueError:
                continue
        raise refused(where, accepts, found)

    return Kind(accepts, read)


def optional(kind: Kind) -> Kind:
    """
    :param kind: a kind
    :return: the same, or nothing
    """
    accepts = f"{kind.accepts}, or null"

    def read(found: Any, where: str) -> Any:
        if found is None:
            return None
        try:
            return kind.read(found, where)
        except ValueError as error:
            # What is refused may be a part of it
            if str(error).startswith(f"{where} must be"):
                raise refused(where, accepts, found) from None
            raise

    return Kind(accepts, read)


def sequence(kind: Kind, most: int = MOST) -> Kind:
    """
    :param kind: that of each part
    :param most: how many there may be
    :return: a list
    """
    accepts = f"a list{f' of up to {most}' if most < MOST else ''}, each {kind.accepts}"

    def read(found: Any, where: str) -> list[Any]:
        if not isinstance(found, (list, tuple)) or len(found) > most:
            raise refused(where, accepts, found)
        return [kind.read(each, f"{where}/{i}") for i, each in enumerate(found)]

    return Kind(accepts, read)


def group(*kinds: Kind) -> Kind:
    """
    :param kinds: those of the parts
    :return: a tuple of as many parts
    """
    accepts = f"{len(kinds)} values in a list ({'; '.join(kind.accepts for kind in kinds)})"

    def read(found: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(found, (list, tuple)) or len(found) != len(kinds):
            raise refused(where, accepts, found)
        return tuple(kind.read(each, f"{where}/{i}") for i, (kind, each) in enumerate(zip(kinds, found, strict=True)))

    return Kind(accepts, read)


def record(
    needed: Mapping[str, Kind],
    others: Mapping[str, Kind] | None = None,
    build: Callable[..., Any] = dict,
) -> Kind:
    """
    :param needed: the fields that have to be there
    :param others: fields that may be there too
    :param build: takes the fields by name, and returns the value
    :return: an object with these fields and no other
    """
    known = {**needed, **(others or {})}
    accepts = f"an object with {', '.join(needed) or 'no field that has to be there'}"
    accepts += f" (and {', '.join(others)} if need be)" if others else ""

    def read(found: Any, where: str) -> Any:
        if not isinstance(found, dict) or not needed.keys() <= found.keys():
            raise refused(where, accepts, found)
        for key in found:
            if key not in known:
                raise ValueError(f"{where}/{key} is not known: {where} must be {accepts}")
        return build(**{key: known[key].read(value, f"{where}/{key}") for key, value in found.items()})

    return Kind(accepts, read)


def table(kind: Kind) -> Kind:
    """
    :param kind: that of each value
    :return: an object with any names
    """
    accepts = f"an object of {kind.accepts} by name"

    def read(found: Any, where: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise refused(where, accepts, found)
        return {NAME.read(key, where): kind.read(value, f"{where}/{key}") for key, value in found.items()}

    return Kind(accepts, read)


def variant(field: str, kinds: Mapping[str, Kind]) -> Kind:
    """
    :param field: the field that tells them apart
    :param kinds: those of the other fields, by what it says
    :return: one of them
    """
    accepts = f"an object whose {field} is one of {', '.join(kinds)}"

    def read(found: Any, where: str) -> Any:
        if not isinstance(found, dict):
            raise refused(where, accepts, found)
        which = choice(*kinds).read(found.get(field), f"{where}/{field}")
        return kinds[which].read({key: value for key, value in found.items() if key != field}, where)

    return Kind(accepts, read)
