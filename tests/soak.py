"""How much longer than usual the tests of sources, files, kills and memory go on: ``make soak`` says so."""

import os

TIMES = int(os.environ.get("SB3_CAPS_SOAK", "1"))
