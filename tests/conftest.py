"""Settings for every test: no window, no second thread (two test processes share two cores)."""

import os

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch as th

th.set_num_threads(1)
