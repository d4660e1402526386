"""Settings of the documentation's site: ``make docs``."""

from sphinx.application import Sphinx

import sb3_caps

project = "sb3_caps"
author = "sb3_caps contributors"
copyright = f"2026, {author}"
release = sb3_caps.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
# Tables that pages include are beside their figures
exclude_patterns = ["_build", "figures"]
# Blocks without a language are commands
highlight_language = "bash"
myst_heading_anchors = 4

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
# What SB3's docstrings say is found in SB3's documentation
autodoc_inherit_docstrings = False

html_theme = "furo"
html_title = f"sb3_caps {release}"
default_role = "literal"


def markdown_headings(
    app: Sphinx, what: str, name: str, obj: object, options: dict[str, bool], lines: list[str]
) -> None:
    """Environments have Gymnasium's headings (``## Rewards``), which are Markdown."""
    lines[:] = [part for line in lines for part in _rubric(line)]


def _rubric(line: str) -> list[str]:
    return [f".. rubric:: {line.removeprefix('## ')}", ""] if line.startswith("## ") else [line]


def setup(app: Sphinx) -> None:
    """
    :param app: of Sphinx
    """
    app.connect("autodoc-process-docstring", markdown_headings)
