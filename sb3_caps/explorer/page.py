"""The page: one file with everything in it."""

import json
import re
from importlib import resources
from typing import Any


def page(recording: dict[str, Any], title: str) -> str:
    """
    :param recording: what ``record`` returned
    :param title: of the page
    :return: HTML that needs nothing else, neither a server nor a network
    """
    folder = resources.files(__package__)
    html, style, script = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    # `<` may not appear in it: a browser would take "</script>" in a name for the end
    data = json.dumps({"title": title, **recording}, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"title": _escaped(title), "style": style, "script": script, "data": data}
    # All at once: a part may hold what looks like the place of another
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], html)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
