"""Pictures and tables of `atari.py`, from the files that its --collect wrote.

python benchmarks/atari_report.py FILE.json.gz [FILE.json.gz ...] [--evaluations FILE.json] [--tag TAG]

Prints the tables of docs/results/atari/README.md; pictures and the table of members go to that folder.

Where two files hold the same run, the later one counts. Dots are the mean returns of the episodes that ended in a span of steps, curves
the same over `WINDOW` episodes; "reached" means that the mean of the last 100 episodes was there for the first time. All actions are
sampled. --evaluations names a list of results of `laser evaluate`, with the run of each; an evaluation of one episode is not shown.
--tag ends the names of pictures, so that those of another day stay.
"""

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.ticker
import numpy as np
from numpy.typing import NDArray

from benchmarks.atari_collect import load
from laser_rl.envs.atari import atari_game
from laser_rl.envs.scores import ATARI_57

mpl.use("Agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "atari"
TARGETS = {"pong": 18.0, "breakout": 100.0}
FRAMES_A_STEP, WINDOW = 4, 100
LEAST_EPISODES = 2  # of an evaluation: one episode has no interval
COLOURS = {"shared": "#1f77b4", "separate": "#d95f02", None: "#1f77b4"}
Entry = Mapping[str, Any]
Curve = NDArray[np.float64]


class Reached(NamedTuple):
    """When a run was there for the first time."""

    frames: int
    minutes: float


class Flow(NamedTuple):
    """What a run did in a second."""

    updates: float
    steps: float


def entries_of(paths: Sequence[Path], evaluations: Sequence[Mapping[str, Any]] = ()) -> list[Entry]:
    """All runs and members, each once; with evaluations that were made apart from their runs."""
    found = {(entry["run"], entry["member"]): entry for path in paths for entry in load(path)["runs"]}
    for played in evaluations:
        entry = found[played["run"], played["member"]]
        known = sorted([*entry["evaluations"], played], key=lambda one: int(one["step"]))
        found[played["run"], played["member"]] = {**entry, "evaluations": known}
    return [found[key] for key in sorted(found, key=lambda key: (key[0], key[1] or 0))]


def evaluation_of(entry: Entry) -> Mapping[str, Any] | None:
    """The last one that tells something.

    >>> evaluation_of({"evaluations": [{"episodes": 16, "mean": 17.0}, {"episodes": 1, "mean": 19.0}]})
    {'episodes': 16, 'mean': 17.0}
    """
    kept = [played for played in entry["evaluations"] if played["episodes"] >= LEAST_EPISODES]
    return kept[-1] if kept else None


def flow(entry: Entry, begin_s: float, end_s: float) -> Flow:
    """Between the first and the last row of a span of its seconds of training.

    >>> train = {"seconds": [0.0, 10.0, 14.0, 20.0], "update": [0, 5, 13, 14], "step": [0, 50, 130, 140]}
    >>> flow({"train": train}, 9.0, 15.0)
    Flow(updates=2.0, steps=20.0)
    """
    train = entry["train"]
    places = [place for place, second in enumerate(train["seconds"]) if begin_s <= second <= end_s]
    if len(places) < 2:
        raise ValueError(
            f"{len(places)} rows between {begin_s:g} and {end_s:g} s, expected at least 2; choose a longer span"
        )
    first, last = places[0], places[-1]
    seconds = train["seconds"][last] - train["seconds"][first]
    return Flow(*((train[name][last] - train[name][first]) / seconds for name in ("update", "step")))


def first_reach(entry: Entry, threshold: float) -> Reached | None:
    """The first row whose mean of the last 100 episodes, all of them there, is not below a threshold.

    >>> train = {"step": [10, 20, 30], "seconds": [60.0, 120.0, 180.0], "return_mean": [9.0, 3.0, 5.0], "episodes": [50, 100, 150]}
    >>> first_reach({"train": train}, 4.0)
    Reached(frames=120, minutes=3.0)
    """
    train = entry["train"]
    columns = (train["step"], train["seconds"], train.get("return_mean", ()), train.get("episodes", ()))
    for step, seconds, mean, episodes in zip(*columns, strict=False):
        if mean is not None and episodes is not None and episodes >= WINDOW and mean >= threshold:
            return Reached(FRAMES_A_STEP * step, seconds / 60)
    return None


def smoothed(returns: Sequence[float], counts: Sequence[int]) -> Curve:
    """The mean over the newest bins that hold `WINDOW` episodes together, or over all there are.

    >>> smoothed([0.0, 2.0, 4.0], [100, 50, 50]).tolist()
    [0.0, 0.6666666666666666, 3.0]
    """
    values, found = np.asarray(returns, float), np.empty(len(returns))
    weights = np.asarray(counts, float)
    first = 0
    for last in range(len(values)):
        while weights[first + 1 : last + 1].sum() >= WINDOW:
            first += 1
        found[last] = np.average(values[first : last + 1], weights=weights[first : last + 1])
    return found


def at(entry: Entry, axis: str) -> Curve:
    """Where the bins of a run stand: in M frames, or in minutes."""
    episodes = entry["episodes"]
    if axis == "minutes":
        return np.asarray(episodes["seconds"], float) / 60
    return FRAMES_A_STEP * np.asarray(episodes["step"], float) / 1e6


def draw(axes: Any, entry: Entry, axis: str, colour: str, *, bold: bool = True) -> None:
    """One run; its last evaluation at its end."""
    episodes, x = entry["episodes"], at(entry, axis)
    if not len(x):
        return
    if bold:
        axes.plot(x, episodes["return"], ".", color=colour, markersize=3.5, alpha=0.5, markeredgewidth=0)
    curve = smoothed(episodes["return"], episodes["count"])
    axes.plot(x, curve, color=colour, linewidth=1.8 if bold else 0.9, alpha=1.0 if bold else 0.6)
    last = evaluation_of(entry)
    if bold and last is not None:
        spread = [[last["mean"] - last["ci95_low"]], [last["ci95_high"] - last["mean"]]]
        label = f"evaluation, {last['episodes']} episodes"
        where = [FRAMES_A_STEP * last["step"] / 1e6 if axis == "frames" else minutes_of(entry)]
        axes.errorbar(
            where, [last["mean"]], yerr=spread, fmt="o", color="#222222", markersize=4, capsize=3, label=label
        )


def dress(axes: Any, environment: str, axis: str) -> None:
    """Lines of reference, labels."""
    game = atari_game(environment)
    score = ATARI_57.get(game)
    if score is not None:
        axes.axhline(score.best, color="#2a9d5c", linestyle="--", linewidth=1, label=f"human {score.best:g}")
        axes.axhline(score.random, color="#999999", linestyle=":", linewidth=1, label=f"random {score.random:g}")
    if game in TARGETS:
        axes.axhline(TARGETS[game], color="#9467bd", linestyle="-.", linewidth=1, label=f"target {TARGETS[game]:g}")
    axes.set_title(f"{environment.removeprefix('ALE/').partition('-v')[0]}", fontsize=10)
    axes.set_xlabel("minutes of training" if axis == "minutes" else "environment frames, millions")
    axes.set_ylabel("return")
    axes.grid(visible=True, alpha=0.25)
    if score is not None or game in TARGETS:
        axes.legend(frameon=False, fontsize=8)


def picture(entries: Sequence[Entry], path: Path) -> None:
    """A row a game: against frames, and against minutes."""
    figure, grid = plt.subplots(len(entries), 2, figsize=(10, 3 * len(entries)), squeeze=False, sharey="row")
    for row, entry in zip(grid, entries, strict=True):
        for axes, axis in zip(row, ("frames", "minutes"), strict=True):
            draw(axes, entry, axis, COLOURS[None])
            dress(axes, entry["environment"], axis)
    _save(figure, path)


def sharing_picture(entries: Sequence[Entry], path: Path) -> None:
    """Members that share a replay beside the same with one each; thin: members, bold: their mean."""
    figure, (row,) = plt.subplots(1, 2, figsize=(10, 3.6), squeeze=False, sharey=True)
    for axes, axis in zip(row, ("frames", "minutes"), strict=True):
        for share in sorted({entry["share"] for entry in entries}):
            own = [entry for entry in entries if entry["share"] == share and entry["episodes"]["step"]]
            for entry in own:
                draw(axes, entry, axis, COLOURS[share], bold=False)
            if own:
                x, mean = mean_curve(own, axis)
                label = {"shared": "one replay", "separate": "a replay each"}[share]
                axes.plot(x, mean, color=COLOURS[share], linewidth=2.2, label=f"{label}: mean of {len(own)}")
        dress(axes, entries[0]["environment"], axis)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    _save(figure, path)


def mean_curve(entries: Sequence[Entry], axis: str) -> tuple[Curve, Curve]:
    """The mean of several curves, where all of them have begun and none has ended."""
    begin, end = max(at(entry, axis)[0] for entry in entries), min(at(entry, axis)[-1] for entry in entries)
    x = np.linspace(begin, max(begin, end), 200)
    curves = [
        np.interp(x, at(entry, axis), smoothed(entry["episodes"]["return"], entry["episodes"]["count"]))
        for entry in entries
    ]
    return x, np.mean(curves, axis=0)


def _save(figure: Any, path: Path) -> None:
    for axes in figure.axes:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(7, steps=[1, 2, 5, 10]))
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def shown(reached: Reached | None) -> str:
    """For a table.

    >>> shown(Reached(12_340_000, 7.25)), shown(None)
    ('12.34 M (7.2 min)', 'not yet')
    """
    return "not yet" if reached is None else f"{reached.frames / 1e6:.2f} M ({reached.minutes:.1f} min)"


def minutes_of(entry: Entry) -> float:
    """Until its last row of training: members of a sweep go on with evaluations, which take another half a minute.

    >>> minutes_of({"seconds": 300.0, "train": {"seconds": [30.0, 270.0]}})
    4.5
    """
    seconds = entry["train"]["seconds"]
    return float(seconds[-1] if seconds else entry["seconds"]) / 60


def standing(entry: Entry) -> list[str]:
    """Frames, minutes, last 100 episodes, evaluation."""
    means = [value for value in entry["train"].get("return_mean", ()) if value is not None]
    played = evaluation_of(entry)
    result = (
        "–"
        if played is None
        else f"{played['mean']:,.1f} ({played['ci95_low']:,.1f} to {played['ci95_high']:,.1f}), {played['episodes']} episodes"
    )
    frames, minutes = f"{FRAMES_A_STEP * entry['step'] / 1e6:.2f} M", f"{minutes_of(entry):.1f}"
    return [frames, minutes, f"{means[-1]:,.1f}" if means else "–", result]


def table(entries: Sequence[Entry]) -> list[str]:
    """A line a game."""
    lines = [
        (
            "| game | frames | minutes | last 100 episodes | evaluation, mean (95 %) | random | human | human-normalised | "
            "human reached | target | target reached |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        game = atari_game(entry["environment"])
        score, target, played = ATARI_57.get(game), TARGETS.get(game), evaluation_of(entry)
        known = ["–", "–", "–", "–"]
        if score is not None:
            normalised = f"{(played['mean'] - score.random) / (score.best - score.random):.2f}" if played else "–"
            known = [f"{score.random:,g}", f"{score.best:,g}", normalised, shown(first_reach(entry, score.best))]
        aim = ["–", "–"] if target is None else [f"{target:g}", shown(first_reach(entry, target))]
        lines.append(f"| {' | '.join([entry['run'], *standing(entry), *known, *aim])} |")
    return lines


def members_table(entries: Sequence[Entry]) -> list[list[str]]:
    """A line a member."""
    lines = [
        [
            *("sweep", "member", "learning rate", "frames", "minutes", "episodes", "their mean return"),
            *("of the second half", "evaluation, mean (95 %)", "acceptance, median"),
        ]
    ]
    for entry in entries:
        frames, minutes, _, played = standing(entry)
        rate = f"{entry['config']['optimiser']['learning_rate']:g}"
        accepted = [share for share in entry["train"].get("acceptance", ()) if share is not None]
        median = f"{np.median(accepted):.2f}" if accepted else "–"
        lines.append([entry["run"], str(entry["member"]), rate, frames, minutes, *halves(entry), played, median])
    return lines


def halves(entry: Entry) -> list[str]:
    """How many episodes; the mean return of all of them, and of those that ended in the second half of the steps.

    >>> halves({"step": 4, "episodes": {"step": [1, 3, 4], "return": [0.0, 2.0, 5.0], "count": [2, 2, 1]}})
    ['5', '1.8', '3.0']
    """
    episodes = entry["episodes"]
    returns, counts = np.asarray(episodes["return"], float), np.asarray(episodes["count"], float)
    later = np.asarray(episodes["step"]) > entry["step"] / 2
    means = [
        f"{np.average(returns[of], weights=counts[of]):,.1f}" if counts[of].sum() else "–" for of in (counts > 0, later)
    ]
    return [f"{counts.sum():.0f}", *means]


def report(entries: Sequence[Entry], out: Path, tag: str = "") -> str:
    """Write all pictures and the table of members into a folder, their names ending in `tag`; return the table of games."""
    single = [entry for entry in entries if entry["share"] is None]
    lines: list[str] = []
    if single:
        name = f"games{tag}.png"
        picture(single, out / name)
        lines += [*table(single), "", f"![returns by game]({name})", ""]
    members = [entry for entry in entries if entry["share"] is not None]
    for environment in sorted({entry["environment"] for entry in members}):
        own = [entry for entry in members if entry["environment"] == environment]
        name = f"sharing-{atari_game(environment)}{tag}.png"
        sharing_picture(own, out / name)
        lines += [f"![one replay, or one each]({name})", ""]
    if members:
        with (out / f"members{tag}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(members_table(members))
    return "\n".join(lines)


def main() -> None:
    """Pictures and members to docs/results/atari, the table of games to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--evaluations", type=Path, metavar="FILE.json")
    parser.add_argument("--tag", default="", help="at the end of the names of pictures")
    asked = parser.parse_args()
    evaluations = json.loads(asked.evaluations.read_text()) if asked.evaluations else []
    print(report(entries_of(asked.files, evaluations), asked.out, asked.tag))


if __name__ == "__main__":
    main()
