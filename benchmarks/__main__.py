"""
Measure everything side by side and print it as tables: ``make bench``, or ``make bench ARGS=--full`` for the long ones.
"""

import argparse
import warnings
from pathlib import Path

import torch as th

from benchmarks import floor, memory, startup, throughput, worlds
from benchmarks.report import machine, table

THEMES = {
    "throughput": throughput.measure,
    "growth": throughput.growth,
    "memory": memory.measure,
    "startup": startup.measure,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="measure for longer, and all numbers of sources and environments"
    )
    parser.add_argument(
        "--threads", type=int, help="threads of torch (default: its own choice; 1 measures processor time)"
    )
    parser.add_argument("--only", nargs="+", choices=[*THEMES, "profile", "worlds"], help="which themes (default: all)")
    parser.add_argument("--output", type=Path, help="write the tables to this file too")
    args = parser.parse_args()
    if args.threads is not None:
        th.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    chosen = args.only or [*THEMES, "profile", "worlds"]
    parts = [f"Measured on {machine()}"]
    results = [result for theme, measure in THEMES.items() if theme in chosen for result in measure(args.full)]
    if results:
        parts.append(table(results))
    if "profile" in chosen:
        parts.append(floor.measure(args.full))
    if "worlds" in chosen:
        parts.append(worlds.table(worlds.measure(scale=1.0 if args.full else 0.2)))
    text = "\n\n".join(parts)
    print(text)
    if args.output is not None:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
