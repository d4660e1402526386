"""A page for going through the episodes of a CAPS model, step by step."""

from sb3_caps.explorer.page import page
from sb3_caps.explorer.recording import Camera, record

__all__ = ["Camera", "page", "record"]
