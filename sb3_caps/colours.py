"""The colour of an option in every figure."""

# Sources in Okabe and Ito's colours, which can be told apart with any colour vision; primitive options in gray.
SOURCE_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#7b4fa6")
PRIMITIVE_COLOUR = "#6b7080"


def option_colour(index: int, n_sources: int) -> str:
    """
    :param index: the index of an option
    :param n_sources: how many options are source policies
    :return: its colour in every figure
    """
    return SOURCE_COLOURS[index % len(SOURCE_COLOURS)] if index < n_sources else PRIMITIVE_COLOUR
