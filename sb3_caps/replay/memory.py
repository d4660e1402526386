"""How much memory there is."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return how many bytes are free without swapping, None where the system does not say (not Linux)."""
    found = [value for value in (_of_machine(), _of_container()) if value is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    if MEMINFO.exists():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _of_container() -> int | None:
    limit, used = CONTAINER / "memory.max", CONTAINER / "memory.current"
    if not (limit.exists() and used.exists()) or limit.read_text().strip() == "max":
        return None
    return int(limit.read_text()) - int(used.read_text())
