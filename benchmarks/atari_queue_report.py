"""Tables and the figure of the Atari queue, from the rows that it has kept: `python -m benchmarks.atari_queue_report`.

Writes `docs/results/atari/calibration.md` and `calibration.png`. Scores are human-normalised: 0 is random play, 1 is a person.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.atari_plan import CALIBRATION_GAMES, FACTORS, FRAMES_A_STEP
from benchmarks.atari_queue import BUCKET_FRAMES, load
from laser_rl.checkpoint import write_bytes
from laser_rl.envs.atari import atari_game
from laser_rl.research.paper import atari_references

mpl.use("Agg")
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "atari"
MILLION = 1_000_000 // BUCKET_FRAMES
Row = Mapping[str, Any]


def mean_return(row: Row, first: int, last: int) -> float:
    """The mean return of the training episodes that ended in buckets `first` to `last`, the last one left out.

    >>> mean_return({"episodes": [1, 2, 0], "return_sum": [4.0, 8.0, 0.0]}, 0, 2)
    4.0
    """
    episodes = sum(row["episodes"][first:last])
    return sum(row["return_sum"][first:last]) / episodes if episodes else math.nan


def last_million(row: Row) -> float:
    """The score in the last million frames, human-normalised."""
    buckets = len(row["episodes"])
    return float(atari_references()[atari_game(row["game"])].normalised(mean_return(row, buckets - MILLION, buckets)))


def by_part(rows: Iterable[Row], variant: str) -> dict[tuple[str, int], Row]:
    """The runs of a variant, by game and seed."""
    return {(row["game"], row["seed"]): row for row in rows if row["stage"] == 1 and row["variant"] == variant}


def difference(own: Mapping[tuple[str, int], Row], centre: Mapping[tuple[str, int], Row]) -> str:
    """Mean and standard error of the difference to the centre, over the runs that both have."""
    found = [last_million(row) - last_million(centre[key]) for key, row in own.items() if key in centre]
    if len(found) < 2:
        return "–"
    return f"{fmean(found):+.2f} ± {stdev(found) / math.sqrt(len(found)):.2f} ({len(found)} pairs)"


def late(row: Row, name: str) -> float:
    """The mean of a column over the last third of a run, without what is missing in it."""
    values = row["train"].get(name, [])
    kept = [value for value in values[-max(1, len(values) // 3) :] if value is not None]
    return fmean(kept) if kept else math.nan


def factor_table(rows: Sequence[Row], variants: Iterable[str], base: str = "centre") -> list[str]:
    """A row for each variant of a factor that has a run, and the variant they are compared with."""
    centre = by_part(rows, base)
    head = (
        f"| variant | {' | '.join(f'{game}, seeds 1 / 2' for game in CALIBRATION_GAMES)} | mean normalised | less {base} | entropy | "
        "acceptance, replayed | online | skipped updates |"
    )
    lines = [
        head,
        "|---|" + "---|" * (len(CALIBRATION_GAMES) + 6),
    ]
    for variant in dict.fromkeys([*variants, base]):
        own = by_part(rows, variant)
        if not own:
            continue
        buckets = len(next(iter(own.values()))["episodes"])
        games = []
        for game in CALIBRATION_GAMES:
            seeds = [own.get((game, seed)) for seed in (1, 2)]
            games.append(
                " / ".join(
                    "–" if row is None else f"{mean_return(row, buckets - MILLION, buckets):,.0f}" for row in seeds
                )
            )
        numbers = [
            fmean(late(row, name) for row in own.values()) for name in ("entropy", "acceptance", "acceptance_online")
        ]
        skipped = sum(int(row["train"]["skipped_updates"][-1]) for row in own.values())
        mean = f"{fmean(map(last_million, own.values())):.2f} ({len(own)} runs)"
        less = "" if variant == base else difference(own, centre)
        lines.append(
            f"| {variant} | {' | '.join(games)} | {mean} | {less} | {' | '.join(f'{n:.2f}' for n in numbers)} | {skipped} |"
        )
    return lines


def figure(rows: Sequence[Row], path: Path) -> None:
    """Learning curves of the first factor, a panel a game; a line is the mean over seeds, dots are the seeds."""
    shown, axes = plt.subplots(
        1, len(CALIBRATION_GAMES), figsize=(4 * len(CALIBRATION_GAMES), 3.2), layout="constrained"
    )
    variants = list(FACTORS["trust bound"])
    colours = plt.get_cmap("viridis")([place / max(1, len(variants) - 1) for place in range(len(variants))])
    for axis, game in zip(axes, CALIBRATION_GAMES, strict=True):
        for variant, colour in zip(variants, colours, strict=True):
            runs = [row for (own, _), row in by_part(rows, variant).items() if own == game]
            if not runs:
                continue
            curves = [[mean_return(row, place, place + 1) for place in range(len(row["episodes"]))] for row in runs]
            frames = [(place + 1) * BUCKET_FRAMES / 1e6 for place in range(len(curves[0]))]
            label = {"centre": "b = 0.1", "b-off": "every row trusted"}.get(variant, f"b = {variant[1:]}")
            axis.plot(frames, [fmean(values) for values in zip(*curves, strict=True)], color=colour, label=label)
            for curve in curves:
                axis.plot(frames[-1], curve[-1], "o", color=colour, markersize=3)
        axis.set_title(game)
        axis.set_xlabel("million frames")
    axes[0].set_ylabel("return of training episodes")
    axes[0].legend(fontsize=8)
    shown.savefig(path, dpi=110)
    plt.close(shown)


def page(rows: Sequence[Row]) -> str:
    """The page of the calibration."""
    calibration = [row for row in rows if row["stage"] == 1]
    frames = sum(row["frames"] for row in calibration)
    rate = fmean(FRAMES_A_STEP * late(row, "steps_per_second") for row in calibration)
    lines = [
        "# Atari: calibration",
        "",
        "Made by `python -m benchmarks.atari_queue_report` from `benchmarks/results/atari-queue.jsonl`.",
        "Protocol, games, seeds and the rule for choosing stand in `benchmarks/atari_plan.py`, which was committed before the first run:",
        "3 M frames, network ×1, 64 environments, 93.75 % replay at the centre; sticky actions, no life-loss signal, constant learning",
        f"rate. Scores are means over the training episodes of the last million frames. So far {len(calibration)} runs, six at a time",
        f"on one H200: {frames / 1e6:.0f} M frames, {rate:,.0f} a second in each run.",
        "",
        "![Learning curves by trust bound](calibration.png)",
    ]
    for name, variants in FACTORS.items():
        if any(row["variant"] in variants for row in calibration if row["variant"] != "centre"):
            lines += [
                "",
                f"## {name.capitalize()}",
                "",
                *factor_table(calibration, variants, "b0.3" if "from bound 0.3" in name else "centre"),
            ]
    missing = [name for name, variants in FACTORS.items() if not any(row["variant"] in variants for row in calibration)]
    if missing:
        lines += ["", f"Not yet run: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files."""
    rows = load()
    write_bytes(RESULTS / "calibration.md", page(rows).encode())
    figure(rows, RESULTS / "calibration.png")


if __name__ == "__main__":
    main()
