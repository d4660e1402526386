"""``python -m sb3_caps``: the ``sb3-caps`` command."""

import sys

from sb3_caps.commands import main

if __name__ == "__main__":
    sys.exit(main())
