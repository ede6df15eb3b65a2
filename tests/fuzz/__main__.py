"""`make fuzz`: many inputs for every reader, and a table of what became of them. Ends with status 1 at a crash or if memory grows."""

import argparse
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tests.fuzz.run import Crash, Fed, feed
from tests.fuzz.targets import targets

MOST_GROWTH_BYTES = 32 << 20  # of one target; a leak of 5 kB an input would be more


def main() -> int:
    """Feed them in turn."""
    asked = arguments()
    logging.disable(logging.CRITICAL)  # warnings about damaged files are what is expected here
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", RuntimeWarning)  # numbers near the largest there is overflow in means
    torch.set_num_threads(1)
    found, failed = dict[str, Fed](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        every = targets(Path(folder))
        chosen = every if asked.target is None else {asked.target: every[asked.target]}
        total = sum(target.share for target in chosen.values())
        for name, target in chosen.items():
            try:
                found[name] = feed(name, target, max(1, round(asked.inputs * target.share / total)), asked.first)
                print(f"{name}: {found[name].inputs:,} inputs", file=sys.stderr, flush=True)
            except Crash as crash:
                failed.append(str(crash))
    show(found)
    failed += [
        f"{name}: memory grew by {fed.grown_bytes:,} bytes"
        for name, fed in found.items()
        if fed.grown_bytes > MOST_GROWTH_BYTES
    ]
    print(*failed, sep="\n")
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first input; the same number is the same input"
    )
    parser.add_argument("--target", help="only this one")
    return parser.parse_args()


def show(found: dict[str, Fed]) -> None:
    """A line a target, and all together."""
    table = Table("file", "inputs", "refused", "read", "slowest ms", "memory grew kB", title="fuzzing")
    for name, fed in found.items():
        numbers = (fed.inputs, fed.refused, fed.read)
        table.add_row(
            name, *(f"{n:,}" for n in numbers), f"{1000 * fed.slowest_s:.0f}", f"{fed.grown_bytes / 1000:,.0f}"
        )
    sums = (sum(getattr(fed, name) for fed in found.values()) for name in ("inputs", "refused", "read"))
    table.add_row("all", *(f"{n:,}" for n in sums), "", "")
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
