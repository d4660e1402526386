"""Arguments of studies."""


def check_at_least(least: int, **arguments: int | None) -> None:
    """
    Refuse numbers that are too small.

    :param least: the smallest that is allowed
    :param arguments: what the user passed, by the name of the argument; None where nothing was
    """
    for name, value in arguments.items():
        if value is not None and value < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")
