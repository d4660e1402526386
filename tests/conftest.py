"""Settings for every test: no window, no second thread (two test processes share two cores)."""

import os

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch as th
from hypothesis import settings

th.set_num_threads(1)

# Every run looks at other examples, but a machine that decides on a change looks at the same ones each time
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")
