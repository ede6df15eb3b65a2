"""The tables of docs/performance.md, from the kept files; `python -m benchmarks.performance_report` writes them into the page."""

import csv
import statistics
from collections.abc import Sequence
from operator import truediv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, KEPT = ROOT / "docs" / "performance.md", ROOT / "benchmarks" / "results"
MARK = "<!-- performance: made by `python -m benchmarks.performance_report` -->", "<!-- performance end -->"
SIDES = {"example": "example", "package": "package", "sb3": "PPO"}
GROUPED = ("environments", "policy", "recording rows", "forward", "loss", "backward")
SHOWN = ("laser train, first row", "import laser_rl", "laser status RUN", "laser config show", "laser report RUN")
Row = dict[str, str]


def kept(name: str) -> list[Row]:
    """The rows of the newest file of these results."""
    with max(KEPT.glob(f"????-??-??-{name}.csv")).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"|{'|'.join(cells)}|" for cells in (head, ["---"] * len(head), *rows))


def peers(rows: Sequence[Row], before: Sequence[Row]) -> str:
    """Median CPU seconds of each side, and the medians of the ratios within a round, now and `before`."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        seconds = [f"{statistics.median(_seconds(rows, task, arm)):.2f}" for arm in SIDES]
        ratios = (
            statistics.median(map(truediv, *(_seconds(of, task, arm) for arm in ("package", "example"))))
            for of in (rows, before)
        )
        lines.append([task, *seconds, *(f"{ratio:.2f}" for ratio in ratios)])
    return table(["task", *(f"{name}, s" for name in SIDES.values()), "package / example", "before"], lines)


def _seconds(rows: Sequence[Row], task: str, arm: str) -> list[float]:
    return [float(row["cpu_seconds"]) for row in rows if (row["task"], row["arm"]) == (task, arm)]


def shares(rows: Sequence[Row]) -> str:
    """Where the time of a run goes."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    rest = tuple({row["part"] for row in rows} - {*GROUPED})
    lines = []
    for name, parts in {**{part: (part,) for part in GROUPED}, "all else": rest}.items():
        found = (sum(float(r["share"]) for r in rows if r["task"] == task and r["part"] in parts) for task in tasks)
        lines.append([name, *(f"{100 * share:.0f}" for share in found)])
    return table(["% of the time", *tasks], lines)


def overlap(rows: Sequence[Row]) -> str:
    """How `local` compares with its slower side, and with `serial`."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        cells = [statistics.median(float(row[name]) for row in own) for name in ("of_ideal", "of_serial")]
        lines.append([case, *(f"{cell:.2f}" for cell in cells)])
    return table(["case", "local / slower side", "local / serial"], lines)


def starts(rows: Sequence[Row]) -> str:
    """Seconds to begin."""
    return table(["what", "s"], [[row["what"], f"{float(row['seconds']):.2f}"] for row in rows if row["what"] in SHOWN])


def long_run(rows: Sequence[Row], checkpoints: Sequence[Row]) -> str:
    """First and last sixth of a long run, once the replay is full; and checkpoints by what is new in them."""
    steps, part = [float(row["us_a_step"]) for row in rows], len(rows) // 6
    full = statistics.median(steps[part : 2 * part]), statistics.median(steps[-part:])
    held = [float(row["ms_a_checkpoint"]) for row in rows]
    lines = [
        ["a step, µs", f"{full[0]:.0f}", f"{full[1]:.0f}"],
        [
            "a checkpoint, ms",
            f"{statistics.median(held[part : 2 * part]):.0f}",
            f"{statistics.median(held[-part:]):.0f}",
        ],
    ]
    text = table(["long run", "full replay, early", "at the end"], lines)
    news = [row for row in checkpoints if row["new_steps"] != row["held_steps"]]
    found = []
    for size in dict.fromkeys(row["held_steps"] for row in news):
        seconds = [float(row["seconds"]) for row in news if row["held_steps"] == size]
        new = next(row["new_steps"] for row in news if row["held_steps"] == size)
        found.append([f"{int(size):,}", f"{int(new):,}", f"{statistics.median(seconds):.2f}"])
    return f"{text}\n\n{table(['Atari steps held', 'new', 'checkpoint, s'], found)}"


def pauses(rows: Sequence[Row]) -> str:
    """Seconds from one update to the next, without a checkpoint, and the longest around one by who writes it; medians of the rounds."""

    def median(runtime: str, writer: str, name: str) -> str:
        own = [float(row[name]) for row in rows if (row["runtime"], row["writer"]) == (runtime, writer)]
        return f"{statistics.median(own):.2f}"

    lines = []
    for runtime in dict.fromkeys(row["runtime"] for row in rows):
        longest = [median(runtime, writer, "longest_s") for writer in ("the learner", "a thread")]
        lines.append(
            [runtime, median(runtime, "a thread", "update_s"), *longest, median(runtime, "a thread", "held_s")]
        )
    return table(["between updates, s", "usual", "checkpoint: learner", "thread", "its begin"], lines)


def draws(rows: Sequence[Row]) -> str:
    """Prioritised draws before and after the tree."""
    return table(
        ["prioritised batch of 123", "all priorities, ms", "tree, ms"],
        [[row["variant"], f"{float(row['before_ms']):.2f}", f"{float(row['after_ms']):.2f}"] for row in rows],
    )


def tables() -> str:
    """What stands between the marks."""
    parts = (
        peers(kept("cpu-peers"), kept("cpu-peers-before")),
        shares(kept("cpu-parts")),
        overlap(kept("pipeline-2-cores")),
        starts(kept("start")),
    )
    more = (
        long_run(kept("long-run"), kept("checkpoints")),
        pauses(kept("checkpoint-pauses")),
        draws(kept("prioritised")),
    )
    return "\n\n".join((*parts, *more))


def main() -> None:
    """Write the page anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK[0])
    after = rest.partition(MARK[1])[2]
    PAGE.write_text(f"{before}{MARK[0]}\n\n{tables()}\n\n{MARK[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
