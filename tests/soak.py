"""How much longer than usual some tests go on, those that try at random: ``make soak`` says so."""

import os

TIMES = int(os.environ.get("SB3_CAPS_SOAK", "1"))
