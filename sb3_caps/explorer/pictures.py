"""Pictures as text that a page can hold."""

import base64
import hashlib
import io
from typing import Any

import numpy as np

from sb3_caps.extras import require

# Wider pictures are made smaller: a page has room for no more
MAX_SIZE = 640
# A lossless picture that takes more is a photograph rather than a drawing
MAX_BYTES = 24_000
JPEG_QUALITY = 80


class Pictures:
    """
    Pictures, each stored once however often it is shown.

    :ivar addresses: the data URI of each
    """

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, picture: np.ndarray) -> int:
        """
        :param picture: colours of shape (height, width, 3), or shades of shape (height, width), from 0 to 255
        :return: its number
        """
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim not in (2, 3):
            given = f"{type(picture).__name__} of {getattr(picture, 'dtype', '')}"
            raise ValueError(f"render() must return an array of uint8 and of shape (height, width, 3), not {given}.")
        key = hashlib.sha256(picture.tobytes() + repr(picture.shape).encode()).digest()
        if key not in self._numbers:
            self._numbers[key] = len(self.addresses)
            self.addresses.append(data_uri(picture))
        return self._numbers[key]


def data_uri(picture: np.ndarray) -> str:
    """
    :param picture: colours or shades, from 0 to 255
    :return: the picture as PNG, or as JPEG where that is much smaller
    """
    image = require("PIL.Image", "games").fromarray(picture)
    image.thumbnail((MAX_SIZE, MAX_SIZE))
    stored, kind = _encoded(_with_palette(image), "PNG"), "png"
    if len(stored) > MAX_BYTES:
        stored, kind = min((stored, kind), (_encoded(image, "JPEG", quality=JPEG_QUALITY), "jpeg"), key=_size)
    return f"data:image/{kind};base64,{base64.b64encode(stored).decode()}"


def _size(candidate: tuple[bytes, str]) -> int:
    return len(candidate[0])


def _encoded(image: Any, kind: str, **arguments: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **arguments)
    return file.getvalue()


def _with_palette(image: Any) -> Any:
    """The same picture with a byte for each pixel, where it has few colours enough."""
    found = image.getcolors(256) if image.mode == "RGB" else None
    if found is None:
        return image
    colours = np.array(sorted(colour for _, colour in found))
    # Weights that make one number of a colour
    weights = np.array([65536, 256, 1])
    numbers = np.searchsorted(colours @ weights, np.asarray(image) @ weights)
    result = require("PIL.Image", "games").fromarray(numbers.astype(np.uint8))
    result.putpalette(colours.astype(np.uint8).tobytes())
    return result
